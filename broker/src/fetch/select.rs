//! Which records of a frame a subscription gets.

use tidegate_protocol::stored::StoredFrame;

/// Bounds on what is taken of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds<'a> {
    /// Records before this position were told already.
    pub(super) from_lsn: u64,
    /// Records of the topic before this offset are not wanted.
    pub(super) from_offset: u64,
    /// Records to take at most.
    pub(super) records_max: u64,
    /// Only records of this key.
    pub(super) key: Option<&'a [u8]>,
}

/// Records of a frame that match, before the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Selected {
    /// Their positions in the body, ascending.
    pub(super) at: Vec<u32>,
    /// Offset of each.
    pub(super) offsets: Vec<u64>,
    /// Key version of each.
    pub(super) key_versions: Vec<u64>,
    /// First position of the log behind what was looked at.
    pub(super) next_lsn: u64,
    /// Every record of the frame is among them.
    pub(super) whole: bool,
}

/// Looks through a frame. `wants` gives the first offset kept of a topic that is wanted.
pub(super) fn select(frame: &StoredFrame, bounds: Bounds<'_>, wants: impl Fn(u64) -> Option<u64>) -> Selected {
    let wanted: Vec<(u64, Option<u64>)> = frame.header.topics.iter().map(|topic| (topic.id, wants(topic.id))).collect();
    let wants = |id, offset| wanted.iter().any(|&(known, low)| known == id && low.is_some_and(|low| offset >= low));
    let mut selected = Selected {
        at: Vec::new(),
        offsets: Vec::new(),
        key_versions: Vec::new(),
        next_lsn: frame.next_lsn(),
        whole: false,
    };
    if !wanted.iter().any(|(_, low)| low.is_some()) {
        return selected;
    }
    let first = frame.header.first_lsn;
    for (at, (topic, offset, key_version)) in (0_u32..).zip(frame.positions()) {
        let lsn = first.saturating_add(u64::from(at));
        let other_key =
            || bounds.key.is_some() && frame.body.as_ref().and_then(|body| body.record(at).key) != bounds.key;
        if lsn < bounds.from_lsn || offset < bounds.from_offset || !wants(topic, offset) || other_key() {
            continue;
        }
        if selected.at.len() as u64 >= bounds.records_max {
            selected.next_lsn = lsn;
            break;
        }
        selected.at.push(at);
        selected.offsets.push(offset);
        selected.key_versions.push(key_version);
    }
    selected.whole = frame.body.as_ref().is_some_and(|body| body.len() as usize == selected.at.len());
    selected
}

#[cfg(test)]
mod tests {
    use tidegate_protocol::{
        batch::BatchBuilder,
        limits::Limits,
        record::RecordView,
        stored::{FrameHeader, TopicStamp},
    };

    use super::*;

    /// a@10, b@0, a@11, b@1 at LSN 100 to 103.
    fn frame() -> StoredFrame {
        let mut builder = BatchBuilder::new();
        for topic in ["a", "b", "a", "b"] {
            builder.push(topic, RecordView { key: Some(b"k"), value: None, headers: &[], timestamp_ms: 0 });
        }
        let body = builder.finish_body(&Limits::default()).expect("a body");
        let header = FrameHeader {
            first_lsn: 100,
            tenant: 1,
            input_count: 4,
            topics: vec![TopicStamp { id: 16, base_offset: 10 }, TopicStamp { id: 17, base_offset: 0 }],
            key_versions: vec![1, 2, 3, 4],
            ..FrameHeader::default()
        };
        StoredFrame::from_parts(header, Some(body)).expect("a frame")
    }

    const ALL: Bounds<'static> = Bounds { from_lsn: 0, from_offset: 0, records_max: u64::MAX, key: None };

    fn only(wanted: u64) -> impl Fn(u64) -> Option<u64> {
        move |id| (id == wanted).then_some(0)
    }

    #[test]
    fn what_matches_and_where_the_scan_is_then() {
        let frame = frame();
        let all = select(&frame, ALL, |_| Some(0));
        assert_eq!((all.at.as_slice(), all.whole, all.next_lsn), ([0, 1, 2, 3].as_slice(), true, 104));
        assert_eq!(
            (all.offsets.as_slice(), all.key_versions.as_slice()),
            ([10, 0, 11, 1].as_slice(), [1, 2, 3, 4].as_slice())
        );
        let a = select(&frame, ALL, only(16));
        assert_eq!((a.at.as_slice(), a.whole, a.next_lsn), ([0, 2].as_slice(), false, 104));
        let none = select(&frame, ALL, |_| None);
        assert_eq!((none.at.len(), none.whole, none.next_lsn), (0, false, 104));
        let kept = select(&frame, ALL, |id| Some(if id == 16 { 11 } else { 0 }));
        assert_eq!((kept.at.as_slice(), kept.whole, kept.next_lsn), ([1, 2, 3].as_slice(), false, 104));
    }

    #[test]
    fn bounds_cut_inside_a_frame() {
        let frame = frame();
        let rest = select(&frame, Bounds { from_lsn: 102, ..ALL }, |_| Some(0));
        assert_eq!((rest.at.as_slice(), rest.whole), ([2, 3].as_slice(), false));
        let from = select(&frame, Bounds { from_offset: 11, ..ALL }, only(16));
        assert_eq!(from.offsets, [11]);
        let key = |key| select(&frame, Bounds { key: Some(key), ..ALL }, only(16)).offsets;
        assert_eq!((key(b"k").as_slice(), key(b"other").as_slice()), ([10, 11].as_slice(), [].as_slice()));
        let one = select(&frame, Bounds { records_max: 1, ..ALL }, only(17));
        assert_eq!((one.at.as_slice(), one.next_lsn), ([1].as_slice(), 103), "the next scan starts at the next match");
    }
}
