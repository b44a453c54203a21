//! Tells what became of each record, and counts.

use tidegate_client::{Outcome, Rejection};

use super::{
    super::{
        Error,
        error::BadLine,
        output::{self, Output},
    },
    Args,
    rows::{APPENDED, DIVERTED, DROPPED, Fate, NOT_SENT, REJECTED, Tally},
};

/// Tells what became of each record, and counts.
#[derive(Debug)]
pub(super) struct Teller<'a> {
    output: &'a mut Output,
    topic: String,
    quiet: bool,
    tally: Tally,
    /// The only record so far, appended: its place is told when it stays the only one.
    only: Option<Fate>,
    /// Nobody reads the output any more: records go on being sent, in silence.
    gone: bool,
}

impl<'a> Teller<'a> {
    /// For the records of one run.
    pub(super) fn new(args: &Args, output: &'a mut Output) -> Self {
        Self { output, topic: args.topic.clone(), quiet: args.quiet, tally: Tally::default(), only: None, gone: false }
    }

    /// One record has its answer.
    pub(super) fn tell(&mut self, line: u64, key: Option<&[u8]>, outcome: &Outcome) -> Result<(), Error> {
        let fate = fate(line, &self.topic, key, outcome);
        self.tally.count(&fate);
        let noteworthy = matches!(fate.status, REJECTED | DIVERTED);
        if !self.quiet && (self.output.is_json() || noteworthy) {
            self.say(|output| output.row(&fate))?;
        }
        self.only = Some(fate).filter(|fate| self.tally.sent == 1 && fate.status == APPENDED);
        Ok(())
    }

    /// Records were refused with their whole batch: each as far as it is known.
    pub(super) fn refused(&mut self, line: u64, rejection: &Rejection) -> Result<(), Error> {
        let fate = rejected(blank(line, REJECTED, &self.topic), rejection);
        if !self.quiet {
            self.say(|output| output.row(&fate))?;
        }
        Ok(())
    }

    /// A line could not be sent and ended the run. People read it in the error; machines get an object in its place.
    pub(super) fn unsent(&mut self, bad: BadLine<'_>) -> Result<(), Error> {
        let fate = Fate {
            code: Some(bad.code.to_owned()),
            reason: Some(bad.reason.to_owned()),
            ..blank(bad.line, NOT_SENT, &self.topic)
        };
        if !self.quiet && self.output.is_json() {
            self.say(|output| output.row(&fate))?;
        }
        Ok(())
    }

    /// What was told so far reaches the reader now.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        self.say(Output::flush)
    }

    /// A reader that left stops the telling, not the sending: the input is appended to its end.
    fn say(&mut self, tell: impl FnOnce(&mut Output) -> std::io::Result<()>) -> Result<(), Error> {
        if self.gone {
            return Ok(());
        }
        match tell(self.output) {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => self.gone = true,
            told => told?,
        }
        Ok(())
    }

    /// Sums up what was told. `whole`: every answer is there; otherwise an error tells the rest.
    pub(super) fn finish(mut self, whole: bool) -> Result<Tally, Error> {
        if !self.quiet && !self.output.is_json() && (whole || self.tally.sent > 0) {
            match self.only.take() {
                Some(fate) if whole => self.say(|output| output.row(&fate))?,
                _ => {
                    let tally = self.tally;
                    self.say(|output| output.row(&tally))?;
                }
            }
        }
        Ok(self.tally)
    }
}

fn blank(line: u64, status: &'static str, topic: &str) -> Fate {
    Fate {
        line,
        status,
        topic: topic.to_owned(),
        offset: None,
        key_version: None,
        key: None,
        code: None,
        plugin_code: None,
        plugin: None,
        reason: None,
        retry_after_ms: None,
    }
}

fn fate(line: u64, sent_to: &str, key: Option<&[u8]>, outcome: &Outcome) -> Fate {
    match outcome {
        Outcome::Appended { topic, offset, key_version } => Fate {
            offset: Some(*offset),
            key: key.map(|key| output::Bytes(key).to_string()),
            key_version: Some(*key_version).filter(|version| *version > 0),
            ..blank(line, APPENDED, topic)
        },
        Outcome::Dropped { plugin } => Fate { plugin: plugin.clone(), ..blank(line, DROPPED, sent_to) },
        Outcome::Rejected(rejection) => rejected(blank(line, REJECTED, sent_to), rejection),
        Outcome::Diverted(rejection) => rejected(blank(line, DIVERTED, sent_to), rejection),
    }
}

fn rejected(fate: Fate, rejection: &Rejection) -> Fate {
    let code = rejection.code.map_or_else(|| rejection.number.to_string(), |code| code.name().to_owned());
    let retry_after = rejection.retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    Fate {
        code: Some(code),
        plugin_code: Some(rejection.plugin_code).filter(|code| *code > 0),
        plugin: rejection.plugin.clone(),
        reason: Some(rejection.reason.clone()).filter(|reason| !reason.is_empty()),
        retry_after_ms: retry_after,
        ..fate
    }
}
