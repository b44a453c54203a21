//! Compares what was produced with what is read back through a chain that masks some fields.

use serde_json::Value;

/// How a value read back differs from the one produced.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Named fields that are there and were changed.
    pub(crate) masked: usize,
    /// Pointers of named fields that are there and came back as they were.
    pub(crate) naked: Vec<String>,
    /// Pointers of other fields that differ.
    pub(crate) altered: Vec<String>,
}

/// Walks both values together. `named` says whether a pointer is one the settings name.
pub(crate) fn compare(produced: &Value, read: &Value, named: &[Vec<String>]) -> Difference {
    let mut difference = Difference::default();
    walk(Some(produced), Some(read), &mut Vec::new(), named, &mut difference);
    difference
}

/// The tokens of a JSON pointer (RFC 6901).
pub(crate) fn tokens(pointer: &str) -> Vec<String> {
    pointer.split('/').skip(1).map(|token| token.replace("~1", "/").replace("~0", "~")).collect()
}

fn walk(a: Option<&Value>, b: Option<&Value>, path: &mut Vec<String>, named: &[Vec<String>], into: &mut Difference) {
    if named.iter().any(|pointer| is_named(pointer, path)) {
        match a {
            // A null holds nothing that could be masked.
            None | Some(Value::Null) => {}
            Some(_) if a == b => into.naked.push(pointer_of(path)),
            Some(_) => into.masked += 1,
        }
        return;
    }
    match (a, b) {
        (Some(Value::Object(x)), Some(Value::Object(y))) => {
            let more = y.keys().filter(|name| !x.contains_key(*name));
            for name in x.keys().chain(more) {
                path.push(name.clone());
                walk(x.get(name), y.get(name), path, named, into);
                path.pop();
            }
        }
        (Some(Value::Array(x)), Some(Value::Array(y))) => {
            for index in 0..x.len().max(y.len()) {
                path.push(index.to_string());
                walk(x.get(index), y.get(index), path, named, into);
                path.pop();
            }
        }
        (a, b) if a == b => {}
        _ => into.altered.push(pointer_of(path)),
    }
}

/// `*` in the settings stands for any one token.
fn is_named(pointer: &[String], path: &[String]) -> bool {
    pointer.len() == path.len() && pointer.iter().zip(path).all(|(named, token)| named == "*" || named == token)
}

fn pointer_of(path: &[String]) -> String {
    path.iter().map(|token| format!("/{}", token.replace('~', "~0").replace('/', "~1"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn named(pointers: &[&str]) -> Vec<Vec<String>> {
        pointers.iter().map(|pointer| tokens(pointer)).collect()
    }

    #[test]
    fn only_named_fields_may_change_and_they_must() {
        let produced = json!({"a": {"mail": "x", "n": 1}, "l": [{"mail": "y"}, {"mail": "z"}], "none": null});
        let read = json!({"a": {"mail": "***", "n": 1}, "l": [{"mail": "*"}, {"mail": "z"}], "none": null});
        let difference = compare(&produced, &read, &named(&["/a/mail", "/l/*/mail", "/not/there", "/none"]));
        assert_eq!(difference, Difference { masked: 2, naked: vec!["/l/1/mail".into()], altered: vec![] });
    }

    #[test]
    fn what_else_changes_is_told() {
        let difference = compare(&json!({"a": 1, "b": [1, 2], "c/d": 1}), &json!({"a": 1, "b": [1], "e": 0}), &[]);
        assert_eq!(difference.altered, ["/b/1", "/c~1d", "/e"]);
    }

    #[test]
    fn a_removed_field_is_masked() {
        let difference = compare(&json!({"mail": "x"}), &json!({}), &named(&["/mail"]));
        assert_eq!(difference, Difference { masked: 1, ..Default::default() });
    }
}
