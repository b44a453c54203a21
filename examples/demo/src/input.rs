//! The events, and what a second validator says of each.

use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;

/// One line of the events file.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// Line number, from 1.
    pub(crate) line: usize,
    /// Value of `/event`: the last level of the topic it is routed to.
    pub(crate) event: String,
    /// The whole line.
    pub(crate) value: Bytes,
    /// What the second validator says.
    pub(crate) valid: bool,
}

/// Reads events and expectations and joins them by line.
pub(crate) fn load(events: &Path, expect: &Path) -> Result<Vec<Event>> {
    let text = std::fs::read(events).with_context(|| format!("cannot read {}", events.display()))?;
    let table = std::fs::read_to_string(expect).with_context(|| format!("cannot read {}", expect.display()))?;
    join(&Bytes::from(text), &table).with_context(|| format!("{} and {}", events.display(), expect.display()))
}

fn join(events: &Bytes, expect: &str) -> Result<Vec<Event>> {
    let expected = expectations(expect)?;
    let mut joined = Vec::new();
    for (index, value) in events.split(|byte| *byte == b'\n').enumerate() {
        if value.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let line = index + 1;
        let event = event_of(value).with_context(|| format!("events, line {line}"))?;
        let Some((_, expected_event, valid)) = expected.iter().find(|(of, _, _)| *of == line) else {
            bail!("events, line {line}: the expectations do not name it");
        };
        ensure!(*expected_event == event, "line {line} is a {event:?}, the expectations say {expected_event:?}");
        joined.push(Event { line, event, value: events.slice_ref(value), valid: *valid });
    }
    ensure!(!joined.is_empty(), "there are no events");
    ensure!(joined.len() == expected.len(), "{} events, {} expectations", joined.len(), expected.len());
    Ok(joined)
}

fn event_of(value: &[u8]) -> Result<String> {
    let json: serde_json::Value = serde_json::from_slice(value).context("not JSON")?;
    match json.pointer("/event") {
        Some(serde_json::Value::String(event)) => Ok(event.clone()),
        _ => bail!("no string at /event"),
    }
}

/// Rows of a table with the columns line, event, valid; tabs between, one head line.
fn expectations(text: &str) -> Result<Vec<(usize, String, bool)>> {
    let mut lines = text.lines().enumerate();
    let head = lines.next().map(|(_, line)| line).unwrap_or_default();
    ensure!(
        head == "line\tevent\tvalid",
        "the expectations start with {head:?}, not with line, event, valid split by tabs"
    );
    let mut rows = Vec::new();
    for (index, row) in lines.filter(|(_, row)| !row.is_empty()) {
        let parsed = match row.split('\t').collect::<Vec<_>>().as_slice() {
            [line, event, valid] => line.parse().ok().zip(valid.parse().ok()).map(|(l, v)| (l, (*event).to_owned(), v)),
            _ => None,
        };
        rows.push(parsed.with_context(|| {
            format!("expectations, line {}: {row:?} is not NUMBER, EVENT, true or false", index + 1)
        })?);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "line\tevent\tvalid\n";

    #[test]
    fn lines_keep_their_numbers_over_blank_ones() {
        let events = Bytes::from_static(b"{\"event\":\"a\"}\n\n{\"event\":\"b\",\"payload\":1}\n");
        let joined = join(&events, &format!("{HEAD}1\ta\ttrue\n3\tb\tfalse\n")).unwrap();
        let seen: Vec<_> = joined.iter().map(|e| (e.line, e.event.as_str(), e.valid)).collect();
        assert_eq!(seen, [(1, "a", true), (3, "b", false)]);
        assert_eq!(joined[1].value, "{\"event\":\"b\",\"payload\":1}");
    }

    #[test]
    fn a_table_that_does_not_fit_is_refused() {
        let events = Bytes::from_static(b"{\"event\":\"a\"}\n");
        for (table, why) in [
            (format!("{HEAD}1\tb\ttrue\n"), "expectations say"),
            (format!("{HEAD}2\ta\ttrue\n"), "do not name"),
            (format!("{HEAD}1\ta\ttrue\n2\ta\ttrue\n"), "1 events, 2 expectations"),
            (format!("{HEAD}1\ta\tmaybe\n"), "true or false"),
            ("1\ta\ttrue\n".to_owned(), "start with"),
        ] {
            let error = format!("{:#}", join(&events, &table).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }
}
