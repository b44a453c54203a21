//! Golden bytes; segments that were cut or changed; and bytes whose checksums hold but that nobody should believe.

use super::{
    super::{chunk, footer::FOOTER_BYTES},
    *,
};

const GOLDEN: &str = include_str!("../golden/segment_v1.hex");

const GOLDEN_GENERATIONS: &str = include_str!("../golden/segment_v1_generations.hex");

/// With headers, tombstones and a change of generation.
fn golden_generations() -> Vec<Arc<StoredFrame>> {
    let shape = Shape { frames: 22, records: 3, topics: 2, keys: 9, value_bytes: 8, big_bytes: 0, null_one_in: 0 };
    frames(5, &shape)
}

fn golden_frames() -> Vec<Arc<StoredFrame>> {
    let shape = Shape { frames: 4, records: 4, topics: 2, keys: 6, value_bytes: 12, big_bytes: 0, null_one_in: 3 };
    frames(11, &shape)
}

fn from_hex(text: &str) -> Bytes {
    let digits = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
    digits.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect::<Vec<_>>().into()
}

fn to_hex(bytes: &[u8]) -> String {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
    bytes.chunks(32).map(line).collect::<Vec<_>>().join("\n")
}

/// Everything a segment can be asked. An error ends it; what came before must be true.
fn ask_all(
    bytes: Bytes,
    expected: &Expected,
    frames: &[Arc<StoredFrame>],
    records: &[StoredRecord],
) -> Result<(), StorageError> {
    let cache = Arc::new(Cache::new(1 << 20));
    let segment = Segment::open(memory(bytes), cache, expected)?;
    let mut failed = Ok(());
    let mut note = |result: Result<(), StorageError>| {
        if result.is_err() {
            failed = result;
        }
    };
    note(segment.scan(segment.first_lsn(), usize::MAX, None).map(|run| assert_frames(&run.frames, frames, "scan")));
    let topics: BTreeSet<u64> = records.iter().map(|record| record.topic_id).collect();
    for topic in topics {
        let of_topic: Vec<_> = records.iter().filter(|record| record.topic_id == topic).cloned().collect();
        note(segment.scan_topic(topic, 0, usize::MAX).map(|slice| assert_eq!(slice.records, of_topic)));
        let keys: BTreeSet<_> = of_topic.iter().filter_map(|record| record.key.clone()).collect();
        for key in &keys {
            let model: Vec<_> = of_topic.iter().filter(|record| record.key.as_ref() == Some(key)).cloned().collect();
            note(segment.replay(topic, key, 0, usize::MAX).map(|slice| assert_eq!(slice.records, model)));
        }
        let listed = segment.keys(topic, b"", None, usize::MAX);
        note(listed.map(|listed| assert!(listed.iter().map(|(key, _)| key).eq(&keys))));
    }
    failed
}

#[test]
fn segments_have_their_golden_bytes_and_golden_bytes_are_read() {
    for (frames, golden) in [(golden_frames(), GOLDEN), (golden_generations(), GOLDEN_GENERATIONS)] {
        let bytes = build(3, 1, &frames);
        assert!(bytes == from_hex(golden), "now:\n{}\n", to_hex(&bytes));
        let expected = expected(&bytes, &frames);
        ask_all(from_hex(golden), &expected, &frames, &records_of(&frames)).unwrap();
    }
    let records = records_of(&golden_generations());
    assert!(
        records.iter().any(|record| !record.headers.is_empty()) && records.iter().any(|record| record.value.is_none())
    );
    assert!(records.iter().any(|record| record.generation != records[0].generation));
}

#[test]
fn a_cut_at_any_byte_and_any_changed_byte_is_an_error_or_changes_nothing() {
    let frames = golden_frames();
    let (bytes, records) = (build(3, 1, &frames), records_of(&frames));
    let expected = expected(&bytes, &frames);
    for end in 0..bytes.len() {
        assert!(ask_all(bytes.slice(..end), &expected, &frames, &records).is_err(), "cut at {end}");
        let short = Expected { bytes: end as u64, ..expected.clone() };
        assert!(ask_all(bytes.slice(..end), &short, &frames, &records).is_err(), "an object of {end} bytes");
    }
    for place in 0..bytes.len() {
        for mask in [1, 0x10, 0x80, 0xff] {
            let mut changed = bytes.to_vec();
            changed[place] ^= mask;
            let asked = ask_all(changed.into(), &expected, &frames, &records);
            // Only the checksum of the whole looks at the first bytes.
            assert!(asked.is_err() || place < 8, "byte {place}");
        }
    }
    let others = [
        Expected { first_lsn: expected.first_lsn + 1, ..expected.clone() },
        Expected { next_lsn: expected.next_lsn + 1, ..expected.clone() },
        Expected { shard: 0, ..expected },
    ];
    for other in others {
        assert!(ask_all(bytes.clone(), &other, &frames, &records).is_err(), "{other:?}");
    }
}

#[test]
fn parts_that_changed_places_are_found_out() {
    // Values of one length: behind the first blocks, in which offsets take a byte less, all are of one length.
    let frames = (0..400).map(|number| one_record(number, 1_000)).collect::<Vec<_>>();
    let (segment, memory) = open(&frames);
    let one = segment.blocks.first().unwrap();
    // A block's own bytes, moved by one: its CRC held where it stood.
    let chunk = memory.bytes[one.position as usize..][..one.bytes as usize].to_vec();
    assert!(chunk::payload(&chunk, one.position).is_ok());
    assert!(chunk::payload(&chunk, one.position + 1).is_err());
    let same = segment.blocks.windows(2).find(|pair| pair[0].bytes == pair[1].bytes);
    let Some([one, other]) = same else { panic!("no two neighbours of one length: {:?}", segment.blocks) };
    let (one, other, length) = (one.position as usize, other.position as usize, one.bytes as usize);
    let mut bytes = memory.bytes.to_vec();
    let (low, high) = bytes.split_at_mut(other);
    low[one..one + length].swap_with_slice(&mut high[..length]);
    assert!(bytes != memory.bytes);
    assert!(ask_all(bytes.into(), &expected(&memory.bytes, &frames), &frames, &records_of(&frames)).is_err());
}

/// A frame with one record without a key.
fn one_record(number: u64, value_bytes: usize) -> Arc<StoredFrame> {
    let mut builder = BatchBuilder::new();
    let value = vec![number as u8; value_bytes];
    builder.push("t", RecordView { key: None, value: Some(&value), headers: &[], timestamp_ms: 0 });
    let header = FrameHeader {
        shard: 3,
        first_lsn: number,
        tenant: 1,
        input_count: 1,
        topics: vec![TopicStamp { id: 16, base_offset: number }],
        key_versions: vec![0],
        ..FrameHeader::default()
    };
    Arc::new(StoredFrame::from_parts(header, Some(builder.finish_body(&Limits::STORED).unwrap())).unwrap())
}

/// Chunks of a segment: position and bytes.
fn chunks_of(segment: &Segment) -> Vec<(usize, usize)> {
    let blocks = segment.blocks.iter().map(|block| (block.position, block.bytes));
    let pages = segment.pages.iter().map(|page| (page.position, page.bytes));
    let heads = segment.heads.iter().map(|page| (page.position, page.bytes));
    let parts = segment.footer.parts;
    let tables = (3..9).map(|number| (parts.start(number), parts.all()[number]));
    let all = blocks.chain(pages).chain(heads).chain(tables);
    all.map(|(position, bytes)| (position as usize, bytes as usize)).collect()
}

#[test]
fn bytes_under_a_right_checksum_never_panic_nor_take_memory_for_what_is_not_there() {
    let golden = golden_frames();
    let (segment, memory) = open(&golden);
    let chunks = chunks_of(&segment);
    let (records, expected) = (records_of(&golden), expected(&memory.bytes, &golden));
    let mut errors = 0;
    for (position, length) in chunks {
        for place in position..position + length - 4 {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = memory.bytes.to_vec();
                bytes[place] = value;
                let crc = crc32c::crc32c_append(
                    crc32c::crc32c(&(position as u64).to_le_bytes()),
                    &bytes[position..position + length - 4],
                );
                bytes[position + length - 4..position + length].copy_from_slice(&crc.to_le_bytes());
                errors += u32::from(ask_some(bytes.into(), &expected, &records).is_err());
            }
        }
    }
    assert!(errors > 1_000, "{errors}");
}

#[test]
fn an_index_that_counts_other_keys_or_starts_among_null_keys_is_not_opened() {
    let golden = golden_frames();
    let (segment, memory) = open(&golden);
    let [page] = segment.pages.as_slice() else { panic!("one page") };
    assert!(segment.topics[0].nulls > 0 && page.entries() > 1);
    let (position, length) = (segment.footer.parts.start(6) as usize, segment.footer.parts.all()[6] as usize);
    // Codec, number of pages, bytes of the page; then its entries and its first rank, a byte each.
    let entries_at = position + 2 + if page.bytes < 0x80 { 1 } else { 2 };
    assert_eq!(u32::from(memory.bytes[entries_at]), page.entries());
    for (place, value) in [(entries_at, memory.bytes[entries_at] - 1), (entries_at + 1, 0), (entries_at + 1, 0x7f)] {
        let mut bytes = memory.bytes.to_vec();
        bytes[place] = value;
        let crc = crc32c::crc32c_append(
            crc32c::crc32c(&(position as u64).to_le_bytes()),
            &bytes[position..position + length - 4],
        );
        bytes[position + length - 4..position + length].copy_from_slice(&crc.to_le_bytes());
        let opened = Segment::open(
            super::memory(bytes.into()),
            Arc::new(Cache::new(1 << 20)),
            &expected(&memory.bytes, &golden),
        );
        assert!(matches!(opened, Err(StorageError::Corrupt { .. })), "{place} {value}");
    }
}

/// What an offline check finds.
fn checked(bytes: Bytes, expected: &Expected) -> Vec<CheckFault> {
    let source: Arc<dyn Ranges> = memory(bytes);
    let each = &mut |_: &StoredFrame| Ok::<_, std::convert::Infallible>(());
    check(&source, &Arc::new(Cache::new(1 << 20)), expected, each).unwrap()
}

#[test]
fn an_offline_check_finds_every_changed_byte_and_nothing_in_a_whole_segment() {
    for frames in [golden_frames(), golden_generations()] {
        let bytes = build(3, 1, &frames);
        let expected = expected(&bytes, &frames);
        assert_eq!(checked(bytes.clone(), &expected), []);
        for place in 0..bytes.len() {
            for mask in [1, 0x80] {
                let mut changed = bytes.to_vec();
                changed[place] ^= mask;
                let faults = checked(changed.into(), &expected);
                assert!(!faults.is_empty(), "byte {place}");
            }
        }
    }
    for seed in 0..40 {
        let frames = frames(seed, &Shape::of(seed));
        let bytes = build(3, 1, &frames);
        assert_eq!(checked(bytes.clone(), &expected(&bytes, &frames)), [], "seed {seed}");
    }
}

#[test]
fn an_offline_check_finds_what_contradicts_itself_under_right_checksums() {
    let golden = golden_frames();
    let (segment, memory) = open(&golden);
    let expected = expected(&memory.bytes, &golden);
    let parts = segment.footer.parts;
    let mut unnoticed = Vec::new();
    for (position, length) in chunks_of(&segment) {
        for place in position + 1..position + length - 4 {
            let mut bytes = memory.bytes.to_vec();
            bytes[place] ^= 1;
            let crc = crc32c::crc32c_append(
                crc32c::crc32c(&(position as u64).to_le_bytes()),
                &bytes[position..position + length - 4],
            );
            bytes[position + length - 4..position + length].copy_from_slice(&crc.to_le_bytes());
            let start = bytes.len() - FOOTER_BYTES;
            let object = crc32c::crc32c(&bytes[..start]);
            bytes[start + 48..start + 52].copy_from_slice(&object.to_le_bytes());
            let crc = crc32c::crc32c(&bytes[start..start + 92]);
            bytes[start + 92..start + 96].copy_from_slice(&crc.to_le_bytes());
            if checked(bytes.into(), &expected).is_empty() {
                unnoticed.push(place as u64);
            }
        }
    }
    // What is left decides nothing: bits behind the last permutation, bits that the filter has too many, separators.
    let decides = |place: &u64| !(parts.start(3)..parts.start(4)).contains(place) && *place < parts.start(8);
    let deciding: Vec<_> = unnoticed.iter().filter(|place| decides(place)).collect();
    assert!(
        deciding.is_empty(),
        "{deciding:?} of {unnoticed:?}, parts begin at {:?}",
        (0..9).map(|n| parts.start(n)).collect::<Vec<_>>()
    );
}

/// Asks everything; the answers need not be true.
fn ask_some(bytes: Bytes, expected: &Expected, records: &[StoredRecord]) -> Result<(), StorageError> {
    let segment = Segment::open(memory(bytes), Arc::new(Cache::new(1 << 20)), expected)?;
    let mut results = vec![segment.scan(0, usize::MAX, None).map(|_| ())];
    for record in records {
        results.push(segment.scan_topic(record.topic_id, record.offset, usize::MAX).map(|_| ()));
        results.push(segment.keys(record.topic_id, b"", None, usize::MAX).map(|_| ()));
        if let Some(key) = &record.key {
            results.push(segment.replay(record.topic_id, key, record.offset, usize::MAX).map(|_| ()));
        }
    }
    results.into_iter().collect()
}

#[test]
fn a_footer_under_a_right_checksum_never_panics() {
    let frames = golden_frames();
    let (_, memory) = open(&frames);
    let (records, expected) = (records_of(&frames), expected(&memory.bytes, &frames));
    let start = memory.bytes.len() - FOOTER_BYTES;
    for place in start..start + 92 {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = memory.bytes.to_vec();
            bytes[place] = value;
            let crc = crc32c::crc32c(&bytes[start..start + 92]);
            bytes[start + 92..start + 96].copy_from_slice(&crc.to_le_bytes());
            drop(ask_some(bytes.into(), &expected, &records));
        }
    }
}
