//! What the crate `getrandom` answers inside a guest. Registering a backend by symbol name is the reason for `unsafe`.
//!
//! Without the feature `random` it is a fixed sequence, the same in every instance: hash maps get their seeds, and the
//! plugin stays pure and imports nothing. **Keys, nonces and identifiers made from it are not secret and repeat.** With the
//! feature, bytes come from the `random` capability, and the plugin needs its grant.

#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code, reason = "the custom backend of getrandom 0.3 and 0.4 is found by its symbol")]
mod backend {
    use getrandom::Error;

    /// # Safety
    /// `dest` must be valid for `len` bytes: the contract of the custom backend.
    #[unsafe(no_mangle)]
    unsafe extern "Rust" fn __getrandom_v03_custom(dest: *mut u8, len: usize) -> Result<(), Error> {
        // SAFETY: getrandom gives a pointer to `len` writable bytes. They may be uninitialised, so zeroes are written
        // before a slice is made of them.
        let bytes = unsafe {
            dest.write_bytes(0, len);
            std::slice::from_raw_parts_mut(dest, len)
        };
        super::fill(bytes);
        Ok(())
    }
}

#[cfg(all(target_arch = "wasm32", feature = "random"))]
fn fill(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(crate::random::BYTES_MAX) {
        chunk.copy_from_slice(&crate::random::bytes(chunk.len()));
    }
}

#[cfg(all(target_arch = "wasm32", not(feature = "random")))]
fn fill(bytes: &mut [u8]) {
    thread_local! {
        static STATE: std::cell::Cell<u64> = const { std::cell::Cell::new(SEED) };
    }
    let state = STATE.get();
    STATE.set(fixed(state, bytes));
}

/// The first 64 bits of pi behind the point: a number with nothing up its sleeve.
#[cfg(any(test, all(target_arch = "wasm32", not(feature = "random"))))]
const SEED: u64 = 0x243f_6a88_85a3_08d3;

/// Fills the bytes with SplitMix64 from a state, and gives the next state.
#[cfg(any(test, all(target_arch = "wasm32", not(feature = "random"))))]
fn fixed(mut state: u64, bytes: &mut [u8]) -> u64 {
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        for (byte, random) in chunk.iter_mut().zip(word.to_le_bytes()) {
            *byte = random;
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixed_sequence_is_splitmix64() {
        let mut bytes = [0; 16];
        fixed(1_234_567, &mut bytes);
        assert_eq!(bytes[..8], 6_457_827_717_110_365_317_u64.to_le_bytes());
        assert_eq!(bytes[8..], 3_203_168_211_198_807_973_u64.to_le_bytes());
    }

    #[test]
    fn every_call_goes_on_where_the_last_ended() {
        let (mut first, mut second) = ([0; 12], [0; 12]);
        let state = fixed(SEED, &mut first);
        fixed(state, &mut second);
        assert_ne!(first, second);
    }
}
