//! Answers: what the sequencer, the chain and the checks say, in the words of the wire.

use tidegate_protocol::{
    error::Code,
    stored::{Refused, RefusedStatus},
    wire::{AckRun, AckStatus, ConflictDetail, Failure, ProduceAck},
};

use crate::{
    hooks::HookError,
    metrics::Metrics,
    shard::{AckedRun, Appended, Refusal},
};

/// When a client should come back where the cause does not say.
const RETRY_AFTER_MS: u32 = 500;

/// The answer to a batch that is durable.
pub(super) fn appended(appended: &Appended) -> ProduceAck {
    let run = |run: &AckedRun| match run {
        AckedRun::Appended { topic, first_offset, key_versions, .. } => {
            AckRun::appended(*topic, *first_offset, key_versions.clone())
        }
        AckedRun::Refused(refused) => AckRun::refused(refused),
    };
    ProduceAck {
        runs: appended.runs.iter().map(run).collect(),
        topics: appended.topics.iter().map(|topic| topic.as_str().to_owned()).collect(),
        failure: None,
        generation: appended.generation,
        duplicate: appended.duplicate,
    }
}

/// The answer to a batch that was refused as a whole.
pub(super) fn failed(failure: Failure) -> ProduceAck {
    ProduceAck { failure: Some(failure), ..ProduceAck::default() }
}

/// The answer to a batch that its plugins refused as a whole: each record that is at fault says why, the others say that
/// they fell with them.
pub(super) fn rejected(input_count: u32, refused: &[Refused], why: &str, generation: u64) -> ProduceAck {
    let first = refused.iter().find(|entry| entry.status == RefusedStatus::Rejected);
    let failure = match first {
        Some(entry) => {
            let code = Code::from_number(entry.code).unwrap_or(Code::PluginRejected);
            Failure::new(code, format!("{} ({why})", entry.reason))
                .by_plugin(entry.plugin.clone())
                .at_record(entry.index)
                .retry_after_ms(entry.retry_after_ms)
        }
        None => Failure::new(Code::PluginRejected, why),
    };
    let mut runs = Vec::new();
    let mut next = 0;
    let with_batch = |records: u32| AckRun {
        records,
        status: AckStatus::Rejected.into(),
        code: u32::from(Code::PluginRejected.number()),
        reason: "refused with its batch".to_owned(),
        ..AckRun::default()
    };
    for entry in refused.iter().filter(|entry| entry.status == RefusedStatus::Rejected) {
        if entry.index > next {
            runs.push(with_batch(entry.index - next));
        }
        runs.push(AckRun::refused(entry));
        next = entry.index.saturating_add(1);
    }
    if input_count > next {
        runs.push(with_batch(input_count - next));
    }
    ProduceAck { runs, topics: Vec::new(), failure: Some(failure), generation, duplicate: false }
}

/// A failing plugin, its policy being `closed`.
pub(super) fn hook(error: &HookError) -> Failure {
    let failure = Failure::new(error.code(), error.to_string()).by_plugin(error.plugin.clone());
    let failure = match error.record {
        Some(at) => failure.at_record(at),
        None => failure,
    };
    let told = error.retry_after_ms();
    if told > 0 { failure.retry_after_ms(told) } else { retry(failure) }
}

/// What the sequencer refused.
pub(super) fn refusal(refusal: &Refusal) -> Failure {
    let mut failure = retry(Failure::new(refusal.code(), refusal.to_string()));
    if let Refusal::Conflict { topic, key, version, last_offset, .. } = refusal {
        failure.conflict = Some(ConflictDetail {
            topic: topic.as_str().to_owned(),
            key: key.to_vec(),
            version: *version,
            last_offset: *last_offset,
        });
    }
    failure
}

/// Tells when to come back, if coming back can help.
pub(super) fn retry(failure: Failure) -> Failure {
    let retriable = failure.known_code().is_some_and(|code| code.row().retriable);
    if retriable && failure.retry_after_ms == 0 { failure.retry_after_ms(RETRY_AFTER_MS) } else { failure }
}

/// Counts an answer.
pub(super) fn count(ack: &ProduceAck, metrics: &Metrics) {
    if let Some(failure) = &ack.failure {
        if let Some(code) = failure.known_code() {
            metrics.refused(code);
        }
        return;
    }
    if ack.duplicate {
        metrics.produce_duplicates.add(1);
        return;
    }
    let mut sums = [0_u64; 4];
    for run in &ack.runs {
        if let Some(sum) = sums.get_mut(run.status as usize) {
            *sum += u64::from(run.records);
        }
    }
    let [appended, dropped, rejected, diverted] = sums;
    metrics.produce_records.appended.add(appended);
    metrics.produce_records.dropped.add(dropped);
    metrics.produce_records.rejected.add(rejected);
    metrics.produce_records.diverted.add(diverted);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejection(index: u32) -> Refused {
        Refused {
            index,
            status: RefusedStatus::Rejected,
            code: Code::PluginRejected.number(),
            plugin_code: 7,
            retry_after_ms: 0,
            reason: format!("record {index} is wrong"),
            plugin: "contract".to_owned(),
        }
    }

    #[test]
    fn a_batch_refused_whole_tells_each_record() {
        let dropped = Refused { status: RefusedStatus::Dropped, ..rejection(0) };
        let ack = rejected(6, &[dropped, rejection(2), rejection(3)], "rejection = \"all\"", 9);
        let told: Vec<_> = ack.runs.iter().map(|run| (run.records, run.plugin_code, run.reason.as_str())).collect();
        assert_eq!(
            told,
            [
                (2, 0, "refused with its batch"),
                (1, 7, "record 2 is wrong"),
                (1, 7, "record 3 is wrong"),
                (2, 0, "refused with its batch"),
            ]
        );
        let failure = ack.failure.expect("refused");
        assert_eq!(
            failure.to_string(),
            "PLUGIN_REJECTED: record 2 is wrong (rejection = \"all\") (record 2) (plugin contract)"
        );
        assert!(!failure.is_retriable());
        assert_eq!(ack.generation, 9);
    }
}
