//! What a guest sees: the asked-for columns of the chosen records, in the layout of `wit/types.wit`.
//!
//! A column of a whole body is copied as it lies; of some records, or where a plugin changed one, it is gathered.

use tidegate_protocol::batch::NULL;

use super::{
    abi::{Fields, Frame, has},
    work::{Column, Selection, View, Work},
};

/// Fills a frame. Its vectors keep their memory from call to call.
pub(super) fn build(work: &Work, selection: &Selection, fields: Fields, out: &mut Frame) {
    out.index.clear();
    out.data.clear();
    if fields == Fields::default() {
        return;
    }
    let view = work.view();
    let whole = work.rows().is_none() && matches!(selection, Selection::All(_));
    if has(fields, Fields::KEY) {
        column(out, selection, whole.then_some(view.keys), |row| view.key(row));
    }
    if has(fields, Fields::VALUE) {
        column(out, selection, whole.then_some(view.values), |row| view.value(row));
    }
    if has(fields, Fields::HEADERS) {
        column(out, selection, whole.then_some(view.headers), |row| Some(view.headers(row)));
    }
    if has(fields, Fields::TOPIC) {
        column(out, selection, None, |row| Some(view.topic(row).as_bytes()));
    }
    if has(fields, Fields::TIMESTAMP) {
        if whole {
            out.data.extend_from_slice(view.timestamps);
        } else {
            selection.rows().for_each(|row| out.data.extend_from_slice(&view.timestamp(row)));
        }
    }
    if has(fields, Fields::OFFSET) {
        selection.rows().for_each(|row| out.data.extend_from_slice(&view.offset(row).to_le_bytes()));
    }
}

fn column<'a>(
    out: &mut Frame,
    selection: &Selection,
    whole: Option<Column<'a>>,
    item: impl Fn(u32) -> Option<&'a [u8]>,
) {
    if let Some(column) = whole {
        out.index.extend(column.ends.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
        out.data.extend_from_slice(column.data);
        return;
    }
    let start = out.data.len();
    for row in selection.rows() {
        push(out, start, item(row));
    }
}

/// Appends an item to the column that begins at byte `start`.
fn push(out: &mut Frame, start: usize, item: Option<&[u8]>) {
    out.data.extend_from_slice(item.unwrap_or_default());
    // A chain holds at most `CHAIN_BYTES_MAX` bytes of records, and a topic has 249: no column comes near 2 GiB.
    let end = u32::try_from(out.data.len() - start).unwrap_or(u32::MAX) & !NULL;
    out.index.push(if item.is_none() { end | NULL } else { end });
}

/// Appends an item to a frame of one column.
pub(super) fn push_item(out: &mut Frame, item: Option<&[u8]>) {
    push(out, 0, item);
}

/// Bytes that a frame of these fields would have.
pub(super) fn bytes(work: &Work, selection: &Selection, fields: Fields) -> usize {
    let view = work.view();
    let variable = [Fields::KEY, Fields::VALUE, Fields::HEADERS, Fields::TOPIC];
    let fixed = [Fields::TIMESTAMP, Fields::OFFSET];
    let words = variable.iter().filter(|field| has(fields, **field)).count() * 4;
    let wide = fixed.iter().filter(|field| has(fields, **field)).count() * 8;
    selection.rows().map(|row| words + wide + variable_bytes(&view, row, fields)).sum()
}

fn variable_bytes(view: &View<'_>, row: u32, fields: Fields) -> usize {
    let length = |item: Option<&[u8]>| item.map_or(0, <[u8]>::len);
    let mut bytes = 0;
    if has(fields, Fields::KEY) {
        bytes += length(view.key(row));
    }
    if has(fields, Fields::VALUE) {
        bytes += length(view.value(row));
    }
    if has(fields, Fields::HEADERS) {
        bytes += view.headers(row).len();
    }
    if has(fields, Fields::TOPIC) {
        bytes += view.topic(row).len();
    }
    bytes
}
