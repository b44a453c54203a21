//! What is dropped, what stays, and that nothing dangles whenever the power goes.

use std::{collections::HashMap, ops::Range, sync::Mutex};

use super::*;
use crate::storage::{manifest::Current, objects::Objects};

/// A log of some segments: topic 16 everywhere, 17 in the frames from `LONELY` on alone. All is consolidated but two files.
fn filled(disk: &SimDisk) -> Log {
    let (log, _) = open_as(disk, Config { tail_bytes: 4096, ..config(1) }).unwrap();
    append_each(&log, (0..FRAMES).map(|lsn| frame(lsn, if LONELY.contains(&lsn) { 17 } else { 16 }, 500)));
    until("all but two files lie in segments", || log.usage().1 <= 2);
    log
}

const FRAMES: u64 = 1_000;
const LONELY: Range<u64> = 300..303;

/// First offsets kept, by topic; others keep all. Offsets are LSNs here.
fn reclaim(log: &Log, lows: &[(u64, u64)], held: &[u64]) -> Result<Reclaimed, StorageError> {
    let lows: HashMap<u64, u64> = lows.iter().copied().collect();
    let held = |windows: &[Range<u64>]| -> Vec<bool> {
        windows.iter().map(|window| held.iter().any(|lsn| window.contains(lsn))).collect()
    };
    let low_offset = |id: u64| lows.get(&id).copied().unwrap_or_default();
    log.reclaim(&Reclaim { low_offset: &low_offset, held: &held, stopped: &|| false })
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.object_names().into_iter().filter(|name| name.starts_with("seg/")).collect()
}

fn objects(disk: &SimDisk) -> Objects {
    Objects::offline(disk.objects(Path::new("/data/objects")).unwrap()).unwrap()
}

/// LSNs that can be read.
fn there(log: &Log) -> Vec<u64> {
    read_all(log, 20_000).iter().map(|frame| frame.header.first_lsn).collect()
}

#[test]
fn segments_go_when_nothing_in_them_is_alive_held_or_not_covered() {
    let disk = disk();
    let log = filled(&disk);
    let all = segments(&disk).len();
    assert!(all > 5);
    let none = reclaim(&log, &[], &[]).unwrap();
    assert_eq!(none, Reclaimed::default(), "all is alive");
    let none = reclaim(&log, &[(16, 200)], &[]).unwrap();
    assert_eq!((none.segments, none.checkpoint_helps), (0, true), "no checkpoint covers them");
    assert!(none.held_bytes > 0 && none.held_bytes < log.segments().1);
    log.checkpoint(700, Bytes::from_static(b"state")).unwrap();
    // Up to 200, but what holds position 5 is held.
    let some = reclaim(&log, &[(16, 200)], &[5]).unwrap();
    assert!(some.segments > 0 && some.held_bytes > 0, "{some:?}");
    assert_eq!(segments(&disk).len() as u64, all as u64 - some.segments);
    let left = there(&log);
    assert!(left.contains(&0) && left.contains(&200) && left.len() < FRAMES as usize);
    assert_eq!(log.first_lsn(), 0);
    let more = reclaim(&log, &[(16, 200)], &[]).unwrap();
    assert_eq!((more.segments, more.held_bytes), (1, 0));
    assert!(log.first_lsn() > 0 && log.first_lsn() <= 200);
    // All of 16 goes; the segment with the other topic stays, and what no checkpoint covers.
    let most = reclaim(&log, &[(16, FRAMES)], &[]).unwrap();
    let left = there(&log);
    assert!(LONELY.clone().all(|lsn| left.contains(&lsn)) && left.contains(&700) && left.contains(&(FRAMES - 1)));
    assert!(most.held_bytes > 0 && !left.contains(&500), "{most:?}");
    assert_eq!(reclaim(&log, &[(16, FRAMES)], &[]).unwrap(), Reclaimed { segments: 0, bytes: 0, ..most });
    log.close();
    let (log, replayed) = open_as(&disk, config(1)).unwrap();
    assert_eq!(frames(replayed).first().map(|frame| frame.header.first_lsn), Some(700));
    assert_eq!(there(&log), left, "and after a restart");
    assert!(log.frame(500).is_err_and(|error| matches!(error, StorageError::Gone { lsn: 500, .. })));
    // What is gone leaves no segment behind when the last one goes.
    log.checkpoint(FRAMES, Bytes::from_static(b"state")).unwrap();
    reclaim(&log, &[(16, FRAMES), (17, FRAMES)], &[]).unwrap();
    assert_eq!(segments(&disk).len(), 0);
    assert_eq!(there(&log).first(), Some(&log.first_lsn()));
    append_each(&log, [frame(FRAMES, 16, 10)]);
    log.close();
    let (log, _) = open_as(&disk, config(1)).unwrap();
    assert_eq!(there(&log).last(), Some(&FRAMES));
}

#[test]
fn a_power_cut_at_any_change_of_a_drop_leaves_nothing_dangling_and_no_orphan() {
    let (mut before, mut after) = (0, 0);
    for seed in 0..64 {
        let disk = SimDisk::new(seed, Mutant::None);
        let log = filled(&disk);
        log.checkpoint(FRAMES, Bytes::from_static(b"state")).unwrap();
        let all = segments(&disk).len();
        disk.cut_power_after(1 + seed % 8);
        let cut = reclaim(&log, &[(16, 600)], &[]);
        drop(log);
        disk.power_cut();
        let (log, _) = open_as(&disk, config(1)).unwrap();
        // Every segment that the manifest names is read here.
        let left = there(&log);
        assert!((600..FRAMES).all(|lsn| left.contains(&lsn)), "seed {seed}: what is alive is there");
        assert_eq!(segments(&disk).len(), log.segments().0, "seed {seed}: no orphan is left");
        if log.segments().0 == all {
            before += 1
        } else {
            after += 1
        }
        assert!(cut.is_err() || log.segments().0 < all, "seed {seed}: what was told is durable");
        reclaim(&log, &[(16, 600)], &[]).unwrap();
        assert!(!there(&log).contains(&100), "seed {seed}: the next try gets there");
    }
    assert!(before > 0 && after > 0, "cuts on both sides of the manifest: {before} and {after}");
}

/// A store that loses a segment which the manifest names is not a store that dropped it.
#[test]
fn a_segment_that_is_lost_is_told_from_one_that_was_dropped() {
    let disk = disk();
    let log = filled(&disk);
    log.checkpoint(FRAMES, Bytes::from_static(b"state")).unwrap();
    reclaim(&log, &[(16, 200)], &[]).unwrap();
    let lost = segments(&disk)[0].clone();
    let lsn = log.first_lsn();
    log.close();
    objects(&disk).remove(&lost).unwrap();
    let (log, _) = open_as(&disk, config(1)).unwrap();
    let error = log.read(lsn, 1, &|_| true).unwrap_err();
    assert!(error.to_string().contains(&lost), "{error}");
}

#[test]
fn a_manifest_of_another_version_is_refused_by_name() {
    let disk = disk();
    filled(&disk).close();
    let name = disk.object_names().into_iter().find(|name| name.starts_with("manifest/")).unwrap();
    disk.edit_object(&name, |bytes| {
        let text = String::from_utf8(std::mem::take(bytes)).unwrap();
        assert!(text.starts_with("{\"version\":2,"), "{text}");
        *bytes = text.replace("\"version\":2", "\"version\":1").replace("\"holes\":[],", "").into_bytes();
    });
    let Err(StorageError::Corrupt { what, .. }) = open_as(&disk, config(1)) else { panic!("version 1 was read") };
    assert_eq!(what, "manifest version 1 is not read by this build; it reads 2");
}

/// Readers and drops at once: nobody fails, nobody misses what is alive.
#[test]
fn readers_and_drops_do_not_meet() {
    let disk = disk();
    let log = filled(&disk);
    log.checkpoint(FRAMES, Bytes::from_static(b"state")).unwrap();
    let low = Mutex::new(0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..40 {
                        let seen = *low.lock().unwrap();
                        let left = there(&log);
                        let wanted = *low.lock().unwrap();
                        assert!((wanted..FRAMES).all(|lsn| left.contains(&lsn)), "from {seen} to {wanted}");
                    }
                })
            })
            .collect();
        for step in 0..10 {
            *low.lock().unwrap() = step * 90;
            reclaim(&log, &[(16, step * 90), (17, step * 90)], &[]).unwrap();
        }
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    assert!(log.first_lsn() > 500);
}

#[test]
fn who_loses_the_manifest_keeps_the_rest() {
    for wal_is_lost in [false, true] {
        let disk = disk();
        let log = filled(&disk);
        log.checkpoint(FRAMES, Bytes::from_static(b"state")).unwrap();
        log.close();
        drop(log);
        let all = disk.object_names();
        let manifest = all.iter().find(|name| name.starts_with("manifest/")).unwrap().clone();
        let kept = disk.bytes_of_object(&manifest);
        disk.remove_object(&manifest);
        if wal_is_lost {
            let wal = Path::new("/data/wal");
            disk.list(wal).unwrap().iter().for_each(|name| disk.remove(&wal.join(name)).unwrap());
        }
        let error = open_as(&disk, config(1)).map(drop).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
        let left: Vec<_> = all.iter().filter(|name| **name != manifest).cloned().collect();
        assert_eq!(disk.object_names(), left, "a start that is refused removes nothing");
        if !wal_is_lost {
            disk.put_object(&manifest, &kept);
            let (log, _) = open_as(&disk, config(1)).unwrap();
            assert_eq!(there(&log).len() as u64, FRAMES, "with its manifest back, the log is whole");
        }
    }
}

#[test]
fn a_manifest_with_holes_is_read_back() {
    let disk = disk();
    let log = filled(&disk);
    log.checkpoint(FRAMES, Bytes::from_static(b"state")).unwrap();
    reclaim(&log, &[(16, 700)], &[]).unwrap();
    log.close();
    let current = Current::load(&objects(&disk)).unwrap();
    assert_eq!(current.manifest.holes.len(), 2, "around the segment of the other topic: {:?}", current.manifest);
}
