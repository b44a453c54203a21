//! Byte work in loops of 256 bytes a turn.
//!
//! The broker can stop a guest at every turn of a loop, and asking costs a loop of one SIMD instruction a turn up to
//! 2.7 times its speed. At 256 bytes a turn the question costs 3 %. So each kernel names the sixteen lanes of a turn
//! one by one, and the compiler makes one SIMD operation of each lane of 16 bytes.

use std::array;

const LANE: usize = 16;
const LANES: usize = 16;

/// Bytes of one turn.
const TURN: usize = LANE * LANES;

type Lane = [u8; LANE];
type Turn = [Lane; LANES];

macro_rules! every_lane {
    ($lane:ident => $body:expr) => {{
        every_lane!(@ $lane, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    }};
    (@ $lane:ident, $body:expr, $($number:literal)*) => {{
        $({
            let $lane = $number;
            $body
        })*
    }};
}

/// The place of the first occurrence of a needle. An empty needle is found at 0.
pub fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let (Some(&first), Some(&last)) = (needle.first(), needle.last()) else {
        return Some(0);
    };
    let places = (haystack.len() + 1).checked_sub(needle.len())?;
    let starts = haystack.get(..places)?;
    let ends = haystack.get(needle.len() - 1..)?;
    let is_here = |place: usize| haystack.get(place..place + needle.len()) == Some(needle);

    let (start_turns, start_rest) = turns(starts);
    let (end_turns, end_rest) = turns(ends);
    for (turn, (starts, ends)) in start_turns.iter().zip(end_turns).enumerate() {
        if !may_hold(starts, first, ends, last) {
            continue;
        }
        let base = turn * TURN;
        if let Some(place) = (base..base + TURN).find(|place| is_here(*place)) {
            return Some(place);
        }
    }
    let base = start_turns.len() * TURN;
    let candidates = start_rest.iter().zip(end_rest).enumerate();
    candidates
        .filter(|(_, (start, end))| **start == first && **end == last)
        .map(|(place, _)| base + place)
        .find(|place| is_here(*place))
}

/// Whether the needle is somewhere in the haystack.
pub fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    find(haystack, needle).is_some()
}

/// Makes ASCII letters upper case, in place.
pub fn to_upper(bytes: &mut [u8]) {
    change(bytes, |byte| byte & !(u8::from(byte.wrapping_sub(b'a') < 26) << 5));
}

/// Makes ASCII letters lower case, in place.
pub fn to_lower(bytes: &mut [u8]) {
    change(bytes, |byte| byte | (u8::from(byte.wrapping_sub(b'A') < 26) << 5));
}

/// Replaces every ASCII letter and digit by one byte and leaves the rest: the shape stays, the content goes.
pub fn mask(bytes: &mut [u8], with: u8) {
    change(bytes, |byte| {
        let hidden = (byte | 0x20).wrapping_sub(b'a') < 26 || byte.wrapping_sub(b'0') < 10;
        if hidden { with } else { byte }
    });
}

fn change(bytes: &mut [u8], one: impl Fn(u8) -> u8 + Copy) {
    let (lanes, rest) = bytes.as_chunks_mut::<LANE>();
    let (turns, lanes_left) = lanes.as_chunks_mut::<LANES>();
    for turn in turns {
        every_lane!(lane => turn[lane] = turn[lane].map(one));
    }
    for lane in lanes_left {
        *lane = lane.map(one);
    }
    for byte in rest {
        *byte = one(*byte);
    }
}

/// Some place of the turn has the first byte here and the last byte there.
fn may_hold(starts: &Turn, first: u8, ends: &Turn, last: u8) -> bool {
    let mut hits: Lane = [0; LANE];
    every_lane!(lane => {
        let (start, end) = (&starts[lane], &ends[lane]);
        let here: Lane = array::from_fn(|byte| u8::from(start[byte] == first) & u8::from(end[byte] == last));
        hits = array::from_fn(|byte| hits[byte] | here[byte]);
    });
    u128::from_ne_bytes(hits) != 0
}

fn turns(bytes: &[u8]) -> (&[Turn], &[u8]) {
    let whole = bytes.len() / TURN * TURN;
    let (head, rest) = bytes.split_at(whole);
    (head.as_chunks::<LANE>().0.as_chunks::<LANES>().0, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes without pattern, from a fixed seed.
    fn noise(length: usize, seed: u64, alphabet: u8) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            u8::try_from(state >> 56).unwrap() % alphabet
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn find_equals_the_plain_search() {
        for length in [0, 1, 15, 16, 255, 256, 257, 511, 512, 513, 1100] {
            for seed in 0..8 {
                let haystack = noise(length, seed, 3);
                for needle_length in 0..=9 {
                    let needle = noise(needle_length, seed + 99, 3);
                    let plain = match needle.as_slice() {
                        [] => Some(0),
                        needle => haystack.windows(needle.len()).position(|window| window == needle),
                    };
                    assert_eq!(find(&haystack, &needle), plain, "{haystack:?} {needle:?}");
                }
            }
        }
    }

    #[test]
    fn a_needle_at_every_place_is_found() {
        for place in 0..600 {
            let mut haystack = vec![b'.'; 620];
            haystack[place..place + 6].copy_from_slice(b"needle");
            assert_eq!(find(&haystack, b"needle"), Some(place));
        }
    }

    #[test]
    fn changes_equal_the_plain_ones_at_every_length() {
        for length in 0..600 {
            let bytes = noise(length, 5, 128);
            let (mut upper, mut lower, mut masked) = (bytes.clone(), bytes.clone(), bytes.clone());
            to_upper(&mut upper);
            to_lower(&mut lower);
            mask(&mut masked, b'*');
            assert_eq!(upper, bytes.to_ascii_uppercase());
            assert_eq!(lower, bytes.to_ascii_lowercase());
            let plain: Vec<u8> =
                bytes.iter().map(|byte| if byte.is_ascii_alphanumeric() { b'*' } else { *byte }).collect();
            assert_eq!(masked, plain);
        }
    }

    #[test]
    fn bytes_beyond_ascii_stay() {
        let mut bytes: Vec<u8> = (128..=255).collect();
        let before = bytes.clone();
        to_upper(&mut bytes);
        to_lower(&mut bytes);
        mask(&mut bytes, b'x');
        assert_eq!(bytes, before);
    }
}
