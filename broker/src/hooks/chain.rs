//! Runs one batch through a chain: position by position, each plugin called once with the records that meet it.

use std::{cell::Cell, sync::Arc, time::Duration};

use bytes::Bytes;
use tidegate_protocol::{
    batch::BatchBody,
    error::Code,
    stored::{Refused, RefusedStatus},
};

use super::{
    FaultKind, FetchInput, FetchOutput, FetchedRecord, Generation, Hook, HookError, Placement, ReaderInfo, abi,
    generation::Position,
    instance::Fault,
    plugin::{Call, Called, Place, Try},
    share::Key,
    spec::Policy,
    topics::TopicPlan,
    work::{Refusal, Row, View, Work},
};
use crate::record::{Batch, Content, Outcome, Rebuilt};

/// A batch on its way through the chain. Moves to a hook thread and back as it is.
struct Run {
    hook: Hook,
    work: Arc<Work>,
    /// The position whose turn is next.
    next: usize,
    now_ms: i64,
    /// Monotonic time of the last reading: the end of one call is the start of the next.
    now: Cell<Duration>,
    principal: Arc<str>,
    reader: Option<Arc<abi::Reader>>,
    role: Option<Arc<str>>,
    /// A plugin failed and was passed over.
    passed_over: bool,
}

impl Generation {
    /// Runs the produce chain over a batch: on this thread while the plugins it meets are short, else on a hook thread
    /// from the first one that is not, with one hand-over. Gives the batch back with what is to be stored of it.
    ///
    /// Cancel-safe in that a dropped future changes nothing but counters of guests; its result is thrown away.
    ///
    /// # Errors
    /// If a plugin fails whose policy is `closed`: the batch is refused as a whole.
    pub async fn produce(self: &Arc<Self>, batch: Batch) -> Result<(Batch, Outcome), HookError> {
        let Batch { tenant, principal, body } = batch;
        let plans = self.plans(&body)?;
        let free = |plan: &Arc<TopicPlan>| plan.is_free(Hook::Produce) && plan.required == 0;
        if body.is_empty() || plans.iter().all(free) {
            let outcome = self.verbatim();
            return Ok((Batch { tenant, principal, body }, outcome));
        }
        let run = Run {
            hook: Hook::Produce,
            work: Arc::new(Work::new(body, plans)),
            next: 0,
            now_ms: crate::clock::unix_ms(&*self.parts.services.clock),
            now: Cell::default(),
            principal,
            reader: None,
            role: None,
            passed_over: false,
        };
        let Run { work, principal, .. } = self.drive(run).await?;
        let mut work = owned(work);
        self.guard(&mut work);
        let outcome = self.outcome(&work);
        Ok((Batch { tenant, principal, body: work.into_body() }, outcome))
    }

    /// Runs the fetch chain over the records of one frame that a subscription wants. Threads as in `produce`. Results
    /// of pure plugins that do not look at the reader are shared among subscribers.
    ///
    /// Cancel-safe: nothing is lost with a dropped future.
    ///
    /// # Errors
    /// If a plugin fails whose policy is `closed`: none of the records may go out.
    pub async fn fetch(self: &Arc<Self>, input: FetchInput) -> Result<FetchOutput, HookError> {
        let FetchInput { frame, at, reader } = input;
        let Some(body) = &frame.body else { return Ok(FetchOutput::Unchanged) };
        let plans = self.plans(body)?;
        let concerned = self.concerned(&plans, &reader.role);
        if at.is_empty() || concerned.is_empty() {
            return Ok(FetchOutput::Unchanged);
        }
        let key = self.sharable(&concerned).then(|| Key {
            first_lsn: frame.header.first_lsn,
            at: at.as_slice().into(),
            positions: concerned.into(),
        });
        if let Some(output) = key.as_ref().and_then(|key| self.shared.find(key)) {
            return Ok(output);
        }
        let frame_bytes = frame.bytes.len();
        let run = Run {
            hook: Hook::Fetch,
            work: Arc::new(Work::some(body.clone(), plans, &at, Some(Arc::clone(&frame)))),
            next: 0,
            now_ms: crate::clock::unix_ms(&*self.parts.services.clock),
            now: Cell::default(),
            principal: "".into(),
            reader: Some(Arc::new(told(&reader))),
            role: Some(reader.role),
            passed_over: false,
        };
        let Run { work, passed_over, .. } = self.drive(run).await?;
        let work = owned(work);
        let output = fetched(&work);
        // What a plugin did not look at is not its answer: the next subscriber asks again.
        if let Some(key) = key.filter(|_| !passed_over) {
            self.shared.keep(key, &output, frame_bytes.saturating_add(work.bytes()));
        }
        Ok(output)
    }

    /// To the end of the chain.
    async fn drive(self: &Arc<Self>, mut run: Run) -> Result<Run, HookError> {
        if let Some(again) = self.advance(&mut run, Place::Caller)? {
            let me = Arc::clone(self);
            let job = move || me.advance(&mut run, Place::HookThread(again)).map(|_| run);
            let answer = self.parts.threads.run(job).await;
            run = answer.map_err(|gone| unavailable("", &gone.to_string()))??;
        }
        Ok(run)
    }

    /// Goes on until the end of the chain, or until a call that may not be made here: then it says how to try it there.
    fn advance(&self, run: &mut Run, mut place: Place) -> Result<Option<Try>, HookError> {
        run.now.set(self.parts.services.clock.monotonic());
        while let Some(position) = self.positions(run.hook).get(run.next) {
            if let Some(again) = self.step(run, position, place)? {
                return Ok(Some(again));
            }
            run.next += 1;
            if place != Place::Caller {
                place = Place::HookThread(Try::First);
            }
        }
        Ok(None)
    }

    fn step(&self, run: &mut Run, position: &Position, place: Place) -> Result<Option<Try>, HookError> {
        if position.unless.as_deref().is_some_and(|role| run.role.as_deref() == Some(role)) {
            return Ok(None);
        }
        let Some(member) = self.members.get(position.member) else { return Ok(None) };
        let selection = match run.work.select_all(run.hook, run.next) {
            Some(all) => all,
            None => match Arc::make_mut(&mut run.work).select(run.hook, run.next) {
                Some(some) => some,
                None => return Ok(None),
            },
        };
        let called = match &member.plugin {
            #[cfg(test)]
            _ if member.native.is_some() => Called::Done(self.call_native(run, member, &selection)),
            Err(error) => Called::Done(Err(Fault::new(FaultKind::Unavailable, error))),
            Ok(plugin) if place == Place::Caller && plugin.placement() == Placement::HookThread => {
                Called::NotHere(Try::First)
            }
            Ok(plugin) => {
                let call = Call {
                    hook: run.hook,
                    generation: self.number(),
                    now_ms: run.now_ms,
                    now: &run.now,
                    principal: &run.principal,
                    reader: run.reader.as_ref(),
                    topics: &self.topics,
                };
                plugin.call(&run.work, &selection, &call, place)
            }
        };
        let result = match called {
            Called::Done(result) => result,
            Called::NotHere(again) => return Ok(Some(again)),
        };
        let pass = |work: &mut Arc<Work>| {
            if position.guard != 0 {
                Arc::make_mut(work).pass(&selection, position.guard);
            }
        };
        match result {
            Ok(plan) => {
                pass(&mut run.work);
                if let Some(plan) = plan {
                    Arc::make_mut(&mut run.work).apply(&selection, *plan);
                    // What this plugin did is not the next one's time.
                    run.now.set(self.parts.services.clock.monotonic());
                }
            }
            // `open` is the operator's word that records may pass this plugin when it fails: its guard included.
            Err(fault) if member.policy(run.hook) == Policy::Open => {
                tracing::debug!(plugin = %member.name, hook = %run.hook, %fault, "plugin failed; its policy is open");
                pass(&mut run.work);
                run.passed_over = true;
            }
            Err(Fault { kind, message, record }) => {
                return Err(HookError { plugin: member.name.to_string(), kind, message, record });
            }
        }
        Ok(None)
    }

    #[cfg(test)]
    fn call_native(
        &self,
        run: &Run,
        member: &super::generation::Member,
        selection: &super::work::Selection,
    ) -> Result<Option<Box<super::work::Plan>>, Fault> {
        let native = member.native.as_ref().expect("asked before");
        super::native::call(&**native, &member.name, run.hook, &run.work, selection, &self.topics)
    }

    /// Plans of a body's topics, in the order of its table.
    fn plans(&self, body: &BatchBody) -> Result<Vec<Arc<TopicPlan>>, HookError> {
        let plan = |name| self.topics.plan(name).map_err(|error| unavailable("", &error.to_string()));
        body.topics().map(plan).collect()
    }

    /// Whether some plugin may change or drop records of this topic on their way to readers with this role.
    pub fn has_fetch_for(&self, topic: &str, role: &str) -> bool {
        // What cannot be told is taken for yes.
        self.topics.plan(topic).map_or(true, |plan| !self.concerned(&[plan], role).is_empty())
    }

    /// Fetch positions that records of these topics may meet, without those that the role skips.
    fn concerned(&self, plans: &[Arc<TopicPlan>], role: &str) -> Vec<usize> {
        let meets = |position: usize| plans.iter().any(|plan| plan.meets(Hook::Fetch, position));
        let skips = |position: &Position| position.unless.as_deref() == Some(role);
        let positions = self.positions(Hook::Fetch).iter().enumerate();
        positions.filter(|(i, position)| !skips(position) && meets(*i)).map(|(i, _)| i).collect()
    }

    fn sharable(&self, positions: &[usize]) -> bool {
        let member = |position: &usize| {
            let position = self.positions(Hook::Fetch).get(*position)?;
            self.members.get(position.member)?.plugin.as_ref().ok()
        };
        positions.iter().all(|position| {
            member(position).is_some_and(|plugin| plugin.manifest.pure && !plugin.manifest.reads_reader)
        })
    }

    /// Rejects records that end where they may not without having passed the plugins of that place.
    fn guard(&self, work: &mut Work) {
        let fails = match work.rows() {
            None => work.topics().iter().any(|topic| topic.required & !work.passed_by_all() != 0),
            Some(rows) => rows.iter().any(|row| missing(row, work.topics().get(row.topic as usize)) != 0),
        };
        if fails {
            work.reject_where(|row, topic| {
                let missing = topic.required & !row.passed;
                (missing != 0).then(|| self.enforcement_missing(missing, topic))
            });
        }
    }

    fn enforcement_missing(&self, missing: u128, topic: &TopicPlan) -> Refusal {
        let (name, place) = self.guard_names(missing).next().unwrap_or_default();
        let reason = format!("{} needs what {name} ({place}) does, and the record did not pass it", topic.name);
        Refusal {
            status: RefusedStatus::Rejected,
            code: Code::EnforcementMissing.number(),
            plugin_code: 0,
            retry_after_ms: 0,
            reason: super::error::cut(&reason, REASON_BYTES_MAX).into(),
            plugin: "".into(),
        }
    }

    fn verbatim(&self) -> Outcome {
        Outcome { generation: self.number(), content: Content::Verbatim, refused: Vec::new(), moved: Vec::new() }
    }

    fn outcome(&self, work: &Work) -> Outcome {
        let Some(rows) = work.rows().filter(|_| work.touched()) else { return self.verbatim() };
        let view = work.view();
        let refused = work.refused().map(|(index, refusal)| Refused {
            index,
            status: refusal.status,
            code: refusal.code,
            plugin_code: refusal.plugin_code,
            retry_after_ms: refusal.retry_after_ms,
            reason: refusal.reason.to_string(),
            plugin: refusal.plugin.to_string(),
        });
        let moved = rows.iter().filter(|row| !row.emitted && is_moved(row, work, &view)).map(|row| row.at);
        let rebuilt = (0..).zip(rows).filter_map(|(number, row)| rebuild(number, row, work, &view));
        Outcome {
            generation: self.number(),
            refused: refused.collect(),
            moved: moved.collect(),
            content: Content::Rebuilt(rebuilt.collect()),
        }
    }
}

/// The guests have let go of it: this only clones if that ever changes.
fn owned(work: Arc<Work>) -> Work {
    Arc::unwrap_or_clone(work)
}

fn unavailable(plugin: &str, message: &str) -> HookError {
    HookError { plugin: plugin.to_owned(), kind: FaultKind::Unavailable, message: message.to_owned(), record: None }
}

fn missing(row: &Row, topic: Option<&Arc<TopicPlan>>) -> u128 {
    topic.map_or(0, |topic| topic.required & !row.passed)
}

fn is_moved(row: &Row, work: &Work, view: &View<'_>) -> bool {
    let name = |number: u32| work.topics().get(number as usize).map(|topic| &topic.name);
    let routed = row.topic != row.first_topic && name(row.topic) != name(row.first_topic);
    let key = row.patch.as_ref().and_then(|patch| patch.key.as_ref());
    routed || key.is_some_and(|key| key.as_deref() != view.keys.item(row.at))
}

fn rebuild(number: u32, row: &Row, work: &Work, view: &View<'_>) -> Option<Rebuilt> {
    let patch = row.patch.as_deref();
    let body = work.body();
    let slice = |part: Option<&[u8]>| part.map(|part| body.slice(part));
    Some(Rebuilt {
        topic: work.topics().get(row.topic as usize)?.name.clone(),
        key: patch.and_then(|p| p.key.clone()).unwrap_or_else(|| slice(view.keys.item(row.at))),
        value: patch.and_then(|p| p.value.clone()).unwrap_or_else(|| slice(view.values.item(row.at))),
        headers: headers(row, work, view),
        timestamp_ms: i64::from_le_bytes(view.timestamp(number)),
        emitted: row.emitted,
    })
}

fn fetched(work: &Work) -> FetchOutput {
    let Some(rows) = work.rows().filter(|_| work.touched()) else { return FetchOutput::Unchanged };
    let view = work.view();
    let slice = |part: Option<&[u8]>| part.map(|part| work.body().slice(part));
    let records = rows.iter().map(|row| {
        let patch = row.patch.as_deref();
        FetchedRecord {
            at: row.at,
            key: patch.and_then(|p| p.key.clone()).unwrap_or_else(|| slice(view.keys.item(row.at))),
            value: patch.and_then(|p| p.value.clone()).unwrap_or_else(|| slice(view.values.item(row.at))),
            headers: headers(row, work, &view),
        }
    });
    FetchOutput::Records(records.collect())
}

fn headers(row: &Row, work: &Work, view: &View<'_>) -> Bytes {
    let set = row.patch.as_deref().and_then(|patch| patch.headers.clone());
    set.unwrap_or_else(|| work.body().slice(view.headers.item(row.at).unwrap_or_default()))
}

fn told(reader: &ReaderInfo) -> abi::Reader {
    let parameters = if reader.parameters.is_empty() { "{}".into() } else { Arc::clone(&reader.parameters) };
    abi::Reader { principal: Arc::clone(&reader.principal), group: Arc::clone(&reader.group), parameters }
}

/// As stored frames hold it (ADR 1).
const REASON_BYTES_MAX: usize = 256;
