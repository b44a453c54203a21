//! `tidegate check`: a `plugins.toml` and every plugin it names, judged without a broker.
//!
//! The same code as in the broker reads the file and loads the components: what passes here is refused there only for
//! what this machine cannot know.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    path::PathBuf,
    sync::Arc,
};

use serde::Serialize;

use super::{Error, Output, exit};
use crate::{
    clock::{SystemClock, SystemRandom},
    config::plugins::{self, LoadedConfig},
    hooks::{self, Level, LoadError, Plugin, Runtime, spec::PluginSpec},
};

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tidegate check plugins.toml\n  tidegate check && tidegate plugins reload")]
pub(super) struct Args {
    /// The file.
    #[arg(default_value = "plugins.toml")]
    file: PathBuf,
}

pub(super) fn run(args: &Args, output: &mut Output) -> Result<u8, Error> {
    let config = plugins::load(&args.file).map_err(|error| Error::config(error.short()))?;
    for warning in &config.warnings {
        output.row(&Finding::warning(warning.clone()))?;
    }
    let runtime = runtime()?;
    let mut errors = 0_usize;
    let mut checked = 0_usize;
    for (tenant, spec) in &config.tenants {
        let mut loaded = BTreeMap::new();
        for (name, plugin) in &spec.plugins {
            let result = load(&runtime, tenant, name, plugin, &config);
            checked += 1;
            match &result {
                Ok(runs) => output.row(&Finding::ok(name, plugin, runs))?,
                Err(error) => {
                    errors += 1;
                    output.row(&Finding::error(&plugin.place, error.as_ref()))?;
                }
            }
            loaded.insert(name.clone(), result);
        }
        // Chains are judged with what did load: one run shows every fault.
        if let Err(error) = runtime.generation(tenant, 1, Arc::new(spec.clone()), loaded) {
            errors += 1;
            output.row(&Finding::error(&args.file.display().to_string(), &error))?;
        }
    }
    output.row(&Summary {
        file: args.file.display().to_string(),
        plugins: checked,
        warnings: config.warnings.len(),
        errors,
    })?;
    Ok(if errors == 0 { exit::OK } else { exit::USAGE })
}

/// A runtime as the broker has it; compiled code is kept nowhere.
fn runtime() -> Result<Runtime, Error> {
    let clock = Arc::new(SystemClock::default());
    let random = Arc::new(SystemRandom::default());
    Runtime::new(hooks::Config::default(), Arc::new(Silent), clock, random)
        .map_err(|error| Error::internal(error.to_string()))
}

fn load(
    runtime: &Runtime,
    tenant: &str,
    name: &str,
    spec: &PluginSpec,
    config: &LoadedConfig,
) -> Result<Arc<Plugin>, Arc<LoadError>> {
    // The loader put the bytes beside every spec.
    let component = config.component(spec).cloned().unwrap_or_default();
    runtime.load(tenant, name, spec, &component, config.files(spec)).map_err(Arc::new)
}

/// A guest that logs during a check has no log to write to.
#[derive(Debug)]
struct Silent;

impl hooks::Host for Silent {
    fn guest_log(&self, _tenant: &str, _plugin: &str, _level: Level, _message: &str) {}
}

/// One thing the check found.
#[derive(Debug, Serialize)]
struct Finding {
    level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugin: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    message: String,
}

impl Finding {
    fn ok(name: &str, spec: &PluginSpec, plugin: &Plugin) -> Self {
        let grants = if spec.grants.is_empty() { "none".to_owned() } else { spec.grants.join(", ") };
        Self {
            level: "ok",
            plugin: Some(name.to_owned()),
            digest: Some(plugin.digest().to_owned()),
            message: format!("{}: plugin {name} loads · grants: {grants}", spec.place),
        }
    }

    fn warning(message: String) -> Self {
        Self { level: "warning", plugin: None, digest: None, message }
    }

    fn error(place: &str, error: &LoadError) -> Self {
        Self { level: "error", plugin: None, digest: None, message: format!("{place}: {error}") }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<7}  {}", self.level, self.message)
    }
}

#[derive(Debug, Serialize)]
struct Summary {
    file: String,
    plugins: usize,
    warnings: usize,
    errors: usize,
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} · {} plugins · {} warnings · {} errors", self.file, self.plugins, self.warnings, self.errors)
    }
}
