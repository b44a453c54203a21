//! An offline check of a directory with a checkpoint, and of checkpoints that contradict the log.

use std::{ops::ControlFlow, path::Path};

use super::*;
use crate::storage::fsck::{self, Event, Fault, Report};

fn judge(disk: &SimDisk, keys_max: usize) -> (Report, Vec<Fault>) {
    let mut faults = Vec::new();
    let mut tell = |event: Event<'_>| {
        if let Event::Fault(fault) = event {
            faults.push(fault.clone());
        }
        ControlFlow::Continue(())
    };
    let report = fsck::run_bounded(disk, Path::new("/data"), &CheckpointRows, &mut tell, keys_max).unwrap();
    (report, faults)
}

/// A closed shard with segments, a checkpoint and a WAL.
async fn closed() -> (SimDisk, u64) {
    let world = World::new();
    for round in 0..30 {
        let key = format!("k{}", round % 9);
        world.put(&[("a", &key, "1"), ("b/c", "k", "2"), ("a", "", "3")]).await;
    }
    world.push_out_of_memory().await;
    let named = |name: &String| name.starts_with("checkpoint/");
    until("a checkpoint is there", || world.disk.object_names().iter().any(named));
    world.put(&[("d", "late", "4")]).await;
    world.shard.close().await;
    let end = world.shard.reader().end();
    (world.disk, end)
}

#[tokio::test]
async fn a_directory_with_a_checkpoint_is_whole_however_few_keys_fit_at_once() {
    let (disk, end) = closed().await;
    let (report, faults) = judge(&disk, fsck::KEYS_AT_ONCE);
    assert_eq!((faults, report.next_lsn), (vec![], end));
    assert!(report.checkpoint_lsn.is_some_and(|lsn| lsn > 0) && report.segments > 0, "{report:?}");
    assert_eq!(judge(&disk, 3), (report, vec![]));
}

#[tokio::test]
async fn every_changed_byte_of_a_checkpoint_is_found() {
    let (disk, _) = closed().await;
    let object = disk.object_names().into_iter().find(|name| name.starts_with("checkpoint/")).unwrap();
    let mut length = 0;
    disk.edit_object(&object, |bytes| length = bytes.len());
    let (mut told_by_content, step) = (0, length / 150 + 1);
    for at in (0..16).chain((16..length).step_by(step)) {
        let damaged = disk.fork();
        damaged.edit_object(&object, |bytes| bytes[at] ^= 1);
        let (_, faults) = judge(&damaged, fsck::KEYS_AT_ONCE);
        assert_eq!(faults[0].file, Path::new("/data/objects").join(&object), "byte {at}");
        // Under a right checksum the log contradicts what matters.
        if at >= 16 {
            damaged.edit_object(&object, |bytes| {
                let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[4..12]), &bytes[16..]);
                bytes[12..16].copy_from_slice(&crc.to_le_bytes());
            });
            told_by_content += usize::from(!judge(&damaged, fsck::KEYS_AT_ONCE).1.is_empty());
        }
    }
    assert!(told_by_content > 50, "{told_by_content}");
}
