//! Says of most keys that a segment does not hold that it does not, from one cache line.
//!
//! A split-block Bloom filter: blocks of 256 bits, eight words of 32 bits, each key sets one bit in every word of one
//! block. With 12 bits per key 0.6 % of absent keys are taken for present. A binary fuse filter would need 9 bits, three
//! cache lines, and a build that may fail; this one cannot, and a block of it can be read alone.
#![allow(clippy::cast_possible_truncation, reason = "a hash is cut into its halves")]

/// Bits per key.
const KEY_BITS: usize = 12;
const BLOCK_BYTES: usize = 32;
/// Odd numbers that pick a bit in each word (Parquet's).
const SALTS: [u32; 8] =
    [0x47b6_137b, 0x4497_4d91, 0x8824_ad5b, 0xa2b7_289d, 0x7054_95c7, 0x2df1_424b, 0x9efc_4947, 0x5c6b_fb31];
/// Odd, random bits: folded multiplication mixes with them.
const MIX: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93, 0xa076_1d64_78bd_642f];

/// The hash of a key of a topic. Part of the format: filters are built with it.
pub(super) fn hash(topic_id: u64, key: &[u8]) -> u64 {
    let mut state = fold(topic_id ^ MIX[0], MIX[1] ^ key.len() as u64);
    let mut words = key.chunks_exact(8);
    for word in &mut words {
        state = fold(state ^ word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word)), MIX[2]);
    }
    let mut last = [0; 8];
    let rest = words.remainder();
    last[..rest.len()].copy_from_slice(rest);
    fold(fold(state ^ u64::from_le_bytes(last), MIX[1]), MIX[0])
}

fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Bytes of a filter over so many keys.
pub(super) fn bytes(keys: usize) -> usize {
    keys.saturating_mul(KEY_BITS).div_ceil(BLOCK_BYTES * 8) * BLOCK_BYTES
}

/// A filter over these hashes.
pub(super) fn build(hashes: &[u64]) -> Vec<u8> {
    let mut bytes = vec![0; bytes(hashes.len())];
    let blocks = bytes.len() / BLOCK_BYTES;
    for &hash in hashes {
        let start = place(hash, blocks) * BLOCK_BYTES;
        for (word, salt) in bytes[start..start + BLOCK_BYTES].chunks_exact_mut(4).zip(SALTS) {
            let bit = bit(hash, salt);
            word[bit as usize / 8] |= 1 << (bit % 8);
        }
    }
    bytes
}

/// Whether a key with this hash may be there.
pub(super) fn may_hold(filter: &[u8], hash: u64) -> bool {
    let blocks = filter.len() / BLOCK_BYTES;
    let start = place(hash, blocks) * BLOCK_BYTES;
    let Some(block) = filter.get(start..start + BLOCK_BYTES) else { return false };
    block.chunks_exact(4).zip(SALTS).all(|(word, salt)| {
        let bit = bit(hash, salt);
        word[bit as usize / 8] & (1 << (bit % 8)) != 0
    })
}

/// Which block: the high half of the hash, scaled.
fn place(hash: u64, blocks: usize) -> usize {
    (((hash >> 32) * blocks as u64) >> 32) as usize
}

/// Which bit of a word: the low half of the hash.
fn bit(hash: u64, salt: u32) -> u32 {
    (hash as u32).wrapping_mul(salt) >> 27
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_found_and_fewer_than_one_absent_key_in_a_hundred_is() {
        for (keys, name) in [(1_000_u64, "customer-"), (50_000, ""), (50_000, "a/rather/long/prefix/of/all/keys/")] {
            let key = |number: u64| format!("{name}{number:07}").into_bytes();
            let hashes: Vec<_> = (0..keys).map(|number| hash(7, &key(number))).collect();
            let filter = build(&hashes);
            assert!((0..keys).all(|number| may_hold(&filter, hash(7, &key(number)))));
            let false_ones = (keys..keys + 100_000).filter(|&number| may_hold(&filter, hash(7, &key(number)))).count();
            assert!(false_ones < 1_000, "{false_ones} of 100 000 with {name:?}");
            let other_topic = (0..keys).filter(|&number| may_hold(&filter, hash(8, &key(number)))).count() as u64;
            assert!(other_topic * 50 < keys, "{other_topic} of {keys} in another topic");
        }
        assert!(!may_hold(&build(&[]), hash(1, b"key")));
        assert!(!may_hold(&[1, 2, 3], 77), "what is no filter holds nothing");
    }
}
