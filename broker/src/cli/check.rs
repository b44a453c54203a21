//! `tidegate check`: a `plugins.toml` and every plugin it names, judged without a broker.
//!
//! The same code as in the broker reads the file and loads the components: what passes here is refused there only for
//! what this machine cannot know.

use std::{
    collections::BTreeMap,
    fmt::{self, Display},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;

use super::{Error, Output, exit};
use crate::{
    clock::{SystemClock, SystemRandom},
    config::plugins::{self, LoadedConfig},
    hooks::{self, LoadError, Plugin, Runtime, spec::PluginSpec},
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
    let config = plugins::load(&args.file).map_err(|error| {
        Error::config(error.short()).then("Fix it and check again. No broker was asked, and nothing changed.")
    })?;
    let place = |at: &str| in_folder_of(&args.file, at);
    let mut summary = Summary { file: args.file.display().to_string(), plugins: 0, warnings: 0, errors: 0 };
    let mut tell = |finding: Finding| {
        summary.count(&finding);
        output.row(&finding)
    };
    for warning in &config.warnings {
        tell(Finding::warning(None, place(warning)))?;
    }
    let runtime = runtime()?;
    for (tenant, spec) in &config.tenants {
        let mut loaded = BTreeMap::new();
        for (name, plugin) in &spec.plugins {
            let at = place(&plugin.place);
            let result = load(&runtime, tenant, name, plugin, &config);
            match &result {
                Ok(runs) => {
                    tell(Finding::ok(&at, name, plugin, runs))?;
                    runs.grants_missing().iter().try_for_each(|grant| tell(Finding::ungranted(&at, name, grant)))?;
                }
                Err(error) => tell(Finding::error(Some(name), format!("{at}: {error}"), error))?,
            }
            loaded.insert(name.clone(), result);
        }
        // Chains are judged with what did load: one run shows every fault. These errors begin with their place.
        if let Err(error) = runtime.generation(tenant, 1, Arc::new(spec.clone()), loaded) {
            tell(Finding::error(None, place(&error.to_string()), &error))?;
        }
    }
    output.row(&summary)?;
    Ok(if summary.errors == 0 { exit::OK } else { exit::USAGE })
}

/// A place in a file is told with the file's name alone; here the file is shown as it was named.
fn in_folder_of(file: &Path, text: &str) -> String {
    file.parent().map_or_else(|| text.to_owned(), |folder| folder.join(text).display().to_string())
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
    fn guest_log(&self, _tenant: &str, _plugin: &str, _level: hooks::Level, _message: &str) {}
}

/// One thing the check found.
#[derive(Debug, Serialize)]
struct Finding {
    level: Level,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugin: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'static str>,
    message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Error,
}

impl Finding {
    fn ok(at: &str, name: &str, spec: &PluginSpec, plugin: &Plugin) -> Self {
        let grants = if spec.grants.is_empty() { "none".to_owned() } else { spec.grants.join(", ") };
        Self {
            level: Level::Ok,
            plugin: Some(name.to_owned()),
            digest: Some(plugin.digest().to_owned()),
            code: None,
            message: format!("{at}: plugin {name} loads · grants: {grants}"),
        }
    }

    fn ungranted(at: &str, name: &str, grant: &str) -> Self {
        let what = format!(
            "{at}: plugin {name} needs the grant {grant:?} with these settings: add it to `grants`, or the broker refuses \
             its batches"
        );
        Self::warning(Some(name), what)
    }

    fn warning(plugin: Option<&str>, message: String) -> Self {
        Self { level: Level::Warning, plugin: plugin.map(str::to_owned), digest: None, code: None, message }
    }

    fn error(plugin: Option<&str>, message: String, error: &LoadError) -> Self {
        let code = Some(error.code().name());
        Self { level: Level::Error, plugin: plugin.map(str::to_owned), digest: None, code, message }
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Error => "error",
        };
        write!(f, "{level:<7}  {}", self.message)?;
        self.code.map_or(Ok(()), |code| write!(f, " ({code})"))
    }
}

#[derive(Debug, Serialize)]
struct Summary {
    file: String,
    plugins: usize,
    warnings: usize,
    errors: usize,
}

impl Summary {
    fn count(&mut self, finding: &Finding) {
        self.plugins +=
            usize::from(finding.digest.is_some() || (finding.level == Level::Error && finding.plugin.is_some()));
        self.warnings += usize::from(finding.level == Level::Warning);
        self.errors += usize::from(finding.level == Level::Error);
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} · {} plugins · {} warnings · {} errors", self.file, self.plugins, self.warnings, self.errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_show_the_file_as_it_was_named() {
        assert_eq!(in_folder_of(Path::new("plugins.toml"), "plugins.toml:3: x"), "plugins.toml:3: x");
        assert_eq!(in_folder_of(Path::new("conf/plugins.toml"), "plugins.toml:3: x"), "conf/plugins.toml:3: x");
    }
}
