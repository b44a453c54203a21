//! Compiles JSON Schemas that lie in bundled files. Nothing is fetched: a reference to a file that did not come with
//! the settings is an error at load.

use std::collections::BTreeMap;

use jsonschema::{Draft, Registry, Retrieve, Uri, Validator};
use serde_json::{Value, json};
use tidegate_plugin::Settings;

/// Where bundled files live among URIs: `bundle:///PATH`.
const ROOT: &str = "bundle:///";

/// The bundled files, and the compiler over them.
#[derive(Debug)]
pub(crate) struct Files {
    parsed: BTreeMap<String, Value>,
}

/// The compiler for one default draft: what applies to files that do not name theirs.
pub(crate) struct Compiler<'f> {
    registry: Registry<'f>,
    draft: Draft,
}

impl Files {
    /// Parses every bundled file that is JSON; others cannot be referred to.
    pub(crate) fn new(settings: &Settings) -> Self {
        let parsed = settings
            .files()
            .filter_map(|(path, content)| Some((plain(path), serde_json::from_slice(content).ok()?)))
            .collect();
        Self { parsed }
    }

    /// A file by its path.
    pub(crate) fn file(&self, path: &str) -> Option<&Value> {
        self.parsed.get(&plain(path))
    }

    /// A compiler whose schemas refer to `path` and from there to other files.
    ///
    /// # Errors
    /// If a file refers to something that is not there.
    pub(crate) fn compiler(&self, path: &str, draft: Draft) -> Result<Compiler<'_>, String> {
        if self.file(path).is_none() {
            return Err(format!("the file {path:?} did not come with the settings, or is no JSON"));
        }
        // Every file is added: references stand in places of the document that only AsyncAPI knows as schemas.
        let resources = self.parsed.iter().map(|(path, content)| {
            let resource = draft.detect(content).create_resource_ref(content);
            (uri(path), resource)
        });
        let registry = Registry::new()
            .retriever(Nowhere)
            .extend(resources)
            .and_then(jsonschema::RegistryBuilder::prepare)
            .map_err(|error| format!("{path}: {error}"))?;
        Ok(Compiler { registry, draft })
    }
}

impl Compiler<'_> {
    /// What applies to files that do not name their draft.
    pub(crate) fn draft(&self) -> Draft {
        self.draft
    }

    /// Compiles the schema at a JSON pointer of a file.
    ///
    /// # Errors
    /// If it is no schema, or refers to something that is not there.
    pub(crate) fn compile(&self, path: &str, pointer: &str) -> Result<Validator, String> {
        let reference = json!({ "$ref": format!("{}#{}", uri(path), fragment(pointer)) });
        jsonschema::options()
            .with_draft(self.draft)
            .should_validate_formats(false)
            .with_registry(&self.registry)
            .offline()
            .build(&reference)
            .map_err(|error| format!("{path}#{pointer}: {error}"))
    }
}

impl std::fmt::Debug for Compiler<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").field("draft", &self.draft).finish_non_exhaustive()
    }
}

/// Every file is in the registry: what is asked for beyond that did not come along.
struct Nowhere;

impl Retrieve for Nowhere {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        match uri.as_str().strip_prefix(ROOT) {
            Some(path) => Err(format!("the file {path:?} did not come with the settings, or is no JSON").into()),
            None => Err(format!("{uri} is not a bundled file; nothing is fetched from a network").into()),
        }
    }
}

/// `./a.json` is `a.json`.
fn plain(path: &str) -> String {
    path.trim_start_matches("./").to_owned()
}

fn uri(path: &str) -> String {
    format!("{ROOT}{}", encoded(&plain(path), b"/"))
}

/// A JSON pointer as a URI fragment.
fn fragment(pointer: &str) -> String {
    encoded(pointer, b"/$")
}

fn encoded(text: &str, also: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.contains(&byte) {
            out.push(byte.into());
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> Files {
        let files = files.iter().map(|(path, content)| ((*path).to_owned(), content.as_bytes().to_vec())).collect();
        Files::new(&Settings::new("{}", files))
    }

    #[test]
    fn references_lead_through_the_bundle() {
        let files = files(&[
            ("./docs/a b.json", r##"{"x/y": {"$ref": "../other.json#/definitions/n"}}"##),
            ("other.json", r#"{"definitions": {"n": {"type": "integer"}}}"#),
        ]);
        let compiler = files.compiler("docs/a b.json", Draft::Draft7).unwrap();
        let validator = compiler.compile("docs/a b.json", "/x~1y").unwrap();
        assert!(validator.is_valid(&json!(1)) && !validator.is_valid(&json!("1")));
    }

    #[test]
    fn what_did_not_come_along_is_named() {
        let files = files(&[
            ("a.json", r#"{"s": {"$ref": "gone.json"}}"#),
            ("b.json", r#"{"s": {"$ref": "https://example.com/x.json"}}"#),
        ]);
        let message = |path: &str| match files.compiler(path, Draft::Draft7) {
            Err(message) => message,
            Ok(compiler) => compiler.compile(path, "/s").unwrap_err(),
        };
        assert!(message("a.json").contains("gone.json"), "{}", message("a.json"));
        assert!(message("b.json").contains("example.com"), "{}", message("b.json"));
        assert!(message("c.json").contains("c.json"));
    }

    #[test]
    fn the_draft_of_a_file_wins_over_the_default() {
        // `prefixItems` means nothing in draft-07.
        let schema = r#""type": "array", "prefixItems": [{"type": "integer"}]"#;
        let new = format!(r#"{{"$schema": "https://json-schema.org/draft/2020-12/schema", {schema}}}"#);
        let files = files(&[
            ("root.json", r#"{"plain": {"$ref": "plain.json"}, "new": {"$ref": "new.json"}}"#),
            ("plain.json", &format!("{{{schema}}}")),
            ("new.json", &new),
        ]);
        let bad = json!(["no integer"]);
        let seven = files.compiler("root.json", Draft::Draft7).unwrap();
        assert!(seven.compile("root.json", "/plain").unwrap().is_valid(&bad));
        assert!(!seven.compile("root.json", "/new").unwrap().is_valid(&bad));
        let twenty = files.compiler("root.json", Draft::Draft202012).unwrap();
        assert!(!twenty.compile("root.json", "/plain").unwrap().is_valid(&bad));
    }
}
