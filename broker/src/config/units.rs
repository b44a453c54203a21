//! Values with units as people write them: `5ms`, `32MiB`, `4x`.

use std::time::Duration;

/// A duration: a whole number and one of `us`, `ms`, `s`, `m`, `h`, `d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let micros: u64 = match unit {
        "us" | "µs" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => {
            return Err(format!(
                "{text:?} is no duration: write a whole number and us, ms, s, m, h or d, as in \"5ms\""
            ));
        }
    };
    let total = number.checked_mul(micros).ok_or_else(|| format!("{text:?} is too long"))?;
    if total == 0 {
        return Err(format!("{text:?} must be more than nothing"));
    }
    Ok(Duration::from_micros(total))
}

/// A number of bytes: a whole number and one of `B`, `KiB`, `MiB`, `GiB` (powers of 1024) or `kB`, `MB`, `GB` (of 1000).
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor: u64 = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return Err(format!("{text:?} is no size: write a whole number and KiB, MiB or GiB, as in \"32MiB\"")),
    };
    let total = number.checked_mul(factor).ok_or_else(|| format!("{text:?} is too large"))?;
    if total == 0 {
        return Err(format!("{text:?} must be more than nothing"));
    }
    Ok(total)
}

/// A factor: `4x`.
pub(super) fn times(text: &str) -> Result<u32, String> {
    let wrong = || format!("{text:?} is no factor: write a whole number from 1 to 1000 and x, as in \"4x\"");
    let (number, unit) = split(text).map_err(|_| wrong())?;
    let number = u32::try_from(number).map_err(|_| wrong())?;
    if unit == "x" && (1..=1_000).contains(&number) { Ok(number) } else { Err(wrong()) }
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let number = number.parse().map_err(|_| format!("{text:?} does not start with a whole number"))?;
    Ok((number, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_people_write() {
        assert_eq!(duration("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(duration("10 s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(7 * 86_400)));
        assert_eq!(bytes("32MiB"), Ok(32 << 20));
        assert_eq!(bytes("2 kB"), Ok(2_000));
        assert_eq!(times("4x"), Ok(4));
    }

    #[test]
    fn units_nobody_understands() {
        for wrong in ["", "ms", "5", "5 weeks", "0ms", "-1s", "1.5s", "99999999999999999999s", "18446744073709551615h"]
        {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "MiB", "5", "0B", "5m", "18446744073709551615GiB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "x", "4", "0x", "4y", "1001x"] {
            assert!(times(wrong).is_err(), "{wrong}");
        }
    }
}
