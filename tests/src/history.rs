//! What processes that raced for the versions of keys saw of it, and whether one order of it all explains that.
//!
//! Every key is a register that only a compare-and-set changes, from version `v` to `v + 1`; an attempt that loses is told
//! the version that stands. The log gives the one order of the versions, so the question whether there is *some* order is
//! easy: attempts in the order of the versions they saw must not contradict the clock, which one machine's processes share.

use std::collections::{BTreeMap, HashMap};

/// One attempt to set a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// The key.
    pub key: String,
    /// Nobody else's: it is what was to be stored.
    pub id: String,
    /// The version at which it was to be set.
    pub expected: u64,
    /// Before it was sent.
    pub start_ns: u64,
    /// After its answer, if there was one.
    pub end: Option<(u64, Answer)>,
}

/// What an attempt was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is stored as this version.
    Won(u64),
    /// It is not: this version stood.
    Lost(u64),
}

impl Attempt {
    /// The lines that processes write: `try KEY ID EXPECTED NS`, then `won ID VERSION NS` or `lost ID VERSION NS`; none if it
    /// is not known what became of it.
    ///
    /// # Panics
    /// If a line that is whole is none of these. A last one that a kill cut is left out.
    pub fn parse(text: &str) -> Vec<Self> {
        let whole = text.rfind('\n').map_or("", |end| text.get(..end).unwrap_or_default());
        let mut attempts: Vec<Self> = Vec::new();
        for line in whole.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().unwrap();
            match words.as_slice() {
                ["try", key, id, _, _] => {
                    let (key, id) = ((*key).to_owned(), (*id).to_owned());
                    attempts.push(Self { key, id, expected: number(3), start_ns: number(4), end: None });
                }
                ["won" | "lost", id, _, _] => {
                    let attempt = attempts.last_mut().filter(|attempt| attempt.id == *id).unwrap();
                    let answer = if words[0] == "won" { Answer::Won(number(2)) } else { Answer::Lost(number(2)) };
                    attempt.end = Some((number(3), answer));
                }
                _ => panic!("{line:?}"),
            }
        }
        attempts
    }
}

/// Everything in a history that no order explains. `log` has for each key what was stored, by version from 1.
pub fn problems(attempts: &[Attempt], log: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut problems = Vec::new();
    let mut places: HashMap<&str, (&str, u64)> = HashMap::new();
    for (key, ids) in log {
        for (id, version) in ids.iter().zip(1..) {
            if let Some((_, before)) = places.insert(id, (key, version)) {
                problems.push(format!("{id} is stored twice: versions {before} and {version} of {key}"));
            }
        }
    }
    // Of each key: (version seen, whether it was read rather than made, start, end, whose).
    let mut seen: BTreeMap<&str, Vec<(u64, bool, u64, u64, &str)>> = BTreeMap::new();
    for attempt in attempts {
        let Attempt { key, id, expected, start_ns, end } = attempt;
        let stored = places.remove(id.as_str());
        let last = log.get(key).map_or(0, |ids| ids.len() as u64);
        let of_key = seen.entry(key).or_default();
        if let Some((at, version)) = stored
            && (at, version) != (key.as_str(), expected + 1)
        {
            problems.push(format!("{id} was to follow version {expected} of {key} and is version {version} of {at}"));
        }
        match (end, stored) {
            (Some((end, Answer::Won(version))), Some((_, at))) if *version == at => {
                of_key.push((at, false, *start_ns, *end, id));
            }
            (Some((_, Answer::Won(version))), at) => {
                problems.push(format!("{id} was told {version}, the log has {at:?}"))
            }
            (Some((_, Answer::Lost(_))), Some((_, at))) => problems.push(format!("{id} lost and is stored as {at}")),
            (Some((end, Answer::Lost(stood))), None) => {
                if stood == expected || *stood > last {
                    problems.push(format!("{id} lost at {expected} against {stood}, the last version is {last}"));
                }
                of_key.push((*stood, true, *start_ns, *end, id));
            }
            (None, Some((_, at))) => of_key.push((at, false, *start_ns, u64::MAX, id)),
            (None, None) => {}
        }
    }
    problems.extend(places.keys().map(|id| format!("{id} is stored and nobody sent it")));
    for (key, mut of_key) in seen {
        of_key.sort_unstable();
        // The latest start of all that come before in the one order: who comes after cannot have ended by then. Readers of
        // one version have no order among each other.
        let (mut latest, mut group) = ((0, ""), ((0, true), (0, "")));
        for (version, read, start, end, id) in of_key {
            if group.0 != (version, read) {
                latest = latest.max(group.1);
                group = ((version, read), (0, ""));
            }
            if end < latest.0 {
                problems.push(format!("{id} saw version {version} of {key} and had ended before {} began", latest.1));
            }
            group.1 = group.1.max((start, id));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(lines: &str) -> Vec<Attempt> {
        Attempt::parse(lines)
    }

    fn judge(lines: &str, log: &[&str]) -> Vec<String> {
        let log = log.iter().map(|id| (*id).to_owned()).collect();
        problems(&history(lines), &BTreeMap::from([("k".to_owned(), log)]))
    }

    #[test]
    fn what_one_order_explains_is_no_problem() {
        // b overlaps a and loses against it; c's answer is lost, and it is stored; d saw c's version before c was answered.
        let lines = "try k a 0 10\nwon a 1 30\ntry k b 0 20\nlost b 1 40\ntry k c 1 50\ntry k d 1 60\nlost d 2 70\ntry k e 2 80\n";
        assert_eq!(judge(lines, &["a", "c"]), Vec::<String>::new());
        assert_eq!(judge(&format!("{lines}won e 9"), &["a", "c"]), Vec::<String>::new(), "a line that a kill cut");
    }

    #[test]
    fn every_contradiction_is_found() {
        let cases = [
            ("two winners", "try k a 0 10\nwon a 1 30\ntry k b 0 20\nwon b 1 40\n", &["a"][..]),
            ("an acked one is gone", "try k a 0 10\nwon a 1 30\n", &[]),
            ("a refused one is stored", "try k a 0 10\nwon a 1 30\ntry k b 0 20\nlost b 1 40\n", &["a", "b"]),
            ("stored twice", "try k a 0 10\nwon a 1 30\n", &["a", "a"]),
            ("stored at another version", "try k a 0 10\nwon a 1 30\ntry k b 5 20\n", &["a", "b"]),
            ("lost against what it expected", "try k a 0 10\nlost a 0 30\n", &[]),
            ("lost against what never was", "try k a 0 10\nlost a 3 30\n", &[]),
            ("from nowhere", "", &["a"]),
            (
                "a stale read: a's win was told before b began",
                "try k a 0 10\nwon a 1 30\ntry k b 1 40\nwon b 2 50\ntry k c 0 60\nlost c 1 70\n",
                &["a", "b"],
            ),
            ("a read of what was not yet begun", "try k a 0 10\nlost a 1 20\ntry k b 0 30\nwon b 1 40\n", &["b"]),
            ("an order against the clock", "try k a 1 10\nwon a 2 20\ntry k b 0 30\nwon b 1 40\n", &["b", "a"]),
        ];
        for (what, lines, log) in cases {
            assert!(!judge(lines, log).is_empty(), "{what}");
        }
    }
}
