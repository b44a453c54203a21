//! Supplied bytes before any parser looks deep into them, and core modules on their way to a component.
//!
//! The parsers behind this recurse as deep as the types they read are nested, and wit-component's for ever where packages
//! depend on each other in a ring: one flipped bit in a name can make such a ring. A stack overflow ends the process, and
//! no policy helps then. So both are ruled out first, by looks at the bytes that do not recurse, and what remains runs on
//! a thread with a stack to spare. Called by `load` and by `cli` (`plugin component`).

use std::{any::Any, thread};

use wasmparser::{ComponentType, ComponentTypeDeclaration, Parser, Payload};

use super::abi::names;

/// Bytes in one type section that may open a nested type; its depth cannot be more. A world has one for each interface.
const OPENERS_MAX: usize = 1_000;
/// Bytes of an embedded component type. That of the SDK has 4 KiB.
const TYPE_BYTES_MAX: usize = 256 << 10;
/// Address space, not memory: only what is used is backed.
const STACK_BYTES: usize = 256 << 20;

/// Why a core module does not become a component.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Its world imports an interface that is not of our package and version.
    #[error("it imports `{0}`, which is not of tidegate:plugin@0.1.0")]
    Import(String),
    /// Its world exports one.
    #[error("it exports `{0}`, which is not of tidegate:plugin@0.1.0")]
    Export(String),
    /// Anything else, in the words of the parser.
    #[error("{0}")]
    Module(String),
}

/// Makes a component of a core module with an embedded component type. Blocking.
///
/// # Errors
/// If the bytes are no such module.
pub fn component_of(module: &[u8]) -> Result<Vec<u8>, EncodeError> {
    let other = |error: &dyn std::fmt::Display| EncodeError::Module(error.to_string());
    // The encoder takes its input for a whole module: it indexes by the lengths it finds there.
    wasmparser::validate(module).map_err(|error| other(&error))?;
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::CustomSection(section) = payload.map_err(|error| other(&error))?
            && section.name().starts_with("component-type")
        {
            check_world(section.data())?;
        }
    }
    let encoded = on_large_stack(|| {
        let encoder = wit_component::ComponentEncoder::default().validate(true);
        encoder.module(module).and_then(|mut encoder| encoder.encode()).map_err(|error| format!("{error:#}"))
    });
    encoded.and_then(|encoded| encoded).map_err(EncodeError::Module)
}

/// Refuses a component whose types may be nested deeper than any real one's.
///
/// # Errors
/// If they may; the text says where.
pub(super) fn check_nesting(component: &[u8]) -> Result<(), String> {
    const CORE_MODULE: u8 = 1;
    const COMPONENT: u8 = 4;
    let mut left = vec![component];
    while let Some(component) = left.pop() {
        for (id, content) in sections(component) {
            match id {
                0 | CORE_MODULE => {}
                COMPONENT => left.push(content),
                _ => {
                    // 0x41 opens a component type, 0x42 an instance type. Other bytes of that value only make this stricter.
                    let openers = content.iter().filter(|byte| matches!(byte, 0x41 | 0x42)).count();
                    if openers > OPENERS_MAX {
                        return Err(format!("section {id} may nest {openers} types, at most {OPENERS_MAX} are taken"));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Number and content of each section, as far as the bytes are sections at all: what follows is for the parsers to judge.
fn sections(component: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = component.get(8..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (id, behind) = rest.split_first()?;
        let (length, behind) = leb128(behind)?;
        let (content, behind) = behind.split_at_checked(length)?;
        rest = behind;
        Some((*id, content))
    })
}

/// A u32 in at most five bytes.
fn leb128(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((usize::try_from(value).ok()?, bytes.get(at + 1..)?));
        }
    }
    None
}

/// Refuses a world with interfaces of other packages than ours. The world itself may be of any: it can depend on us, and we
/// on nobody, so there is no ring.
fn check_world(component_type: &[u8]) -> Result<(), EncodeError> {
    let other = |error: wasmparser::BinaryReaderError| EncodeError::Module(error.to_string());
    if component_type.len() > TYPE_BYTES_MAX {
        let bytes = component_type.len();
        return Err(EncodeError::Module(format!("its component type has {bytes} bytes, at most {TYPE_BYTES_MAX}")));
    }
    check_nesting(component_type).map_err(EncodeError::Module)?;
    for payload in Parser::new(0).parse_all(component_type) {
        let Payload::ComponentTypeSection(types) = payload.map_err(other)? else { continue };
        for declared in types {
            let ComponentType::Component(outer) = declared.map_err(other)? else { continue };
            for declaration in &outer {
                if let ComponentTypeDeclaration::Type(ComponentType::Component(world)) = declaration {
                    check_names(world)?;
                }
            }
        }
    }
    Ok(())
}

fn check_names(world: &[ComponentTypeDeclaration<'_>]) -> Result<(), EncodeError> {
    for declaration in world {
        match declaration {
            ComponentTypeDeclaration::Import(import) if !is_ours(import.name.name) => {
                return Err(EncodeError::Import(import.name.name.to_owned()));
            }
            ComponentTypeDeclaration::Export { name, .. } if !is_ours(name.name) => {
                return Err(EncodeError::Export(name.name.to_owned()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Of our package in our version, or a plain name without a package.
fn is_ours(name: &str) -> bool {
    let ours = |rest: &str| rest.split_once('@').is_some_and(|(_, version)| version == names::VERSION);
    !name.contains(':') || name.strip_prefix(names::PACKAGE).is_some_and(ours)
}

/// Runs a parser of untrusted bytes where it may recurse deeply and panic.
///
/// # Errors
/// If it panicked, or there is no thread to be had.
pub(super) fn on_large_stack<T: Send>(job: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("plugin-parser".to_owned()).stack_size(STACK_BYTES);
        let running = thread.spawn_scoped(scope, job).map_err(|error| format!("no thread for the parser: {error}"))?;
        running.join().map_err(|panic| format!("the parser gave up: {}", last_words(&*panic)))
    })
}

fn last_words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref().copied())
        .unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(id: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![id];
        let mut length = content.len();
        loop {
            let low = u8::try_from(length & 0x7f).expect("seven bits");
            length >>= 7;
            bytes.push(if length > 0 { low | 0x80 } else { low });
            if length == 0 {
                break;
            }
        }
        [bytes, content.to_vec()].concat()
    }

    /// A component with a type that is nested `depth` times.
    fn nested(depth: usize) -> Vec<u8> {
        let content = [&[1][..], &[0x41, 1, 1].repeat(depth), &[0x41, 0]].concat();
        [b"\0asm\x0d\0\x01\0".to_vec(), section(7, &content)].concat()
    }

    #[test]
    fn types_nested_too_deeply_are_refused_before_they_are_parsed() {
        assert!(check_nesting(&nested(500)).is_ok());
        for depth in [2_000, 200_000] {
            let deep = nested(depth);
            assert!(check_nesting(&deep).is_err());
            let inside = [b"\0asm\x0d\0\x01\0".to_vec(), section(4, &deep)].concat();
            assert!(check_nesting(&inside).is_err(), "in a component within a component");
            let name = [&[14][..], b"component-type"].concat();
            let module = [b"\0asm\x01\0\0\0".to_vec(), section(0, &[name, deep].concat())].concat();
            assert!(component_of(&module).is_err(), "in a module");
        }
    }

    #[test]
    fn names_of_other_packages() {
        for ours in ["tidegate:plugin/log@0.1.0", "on-produce", "helper"] {
            assert!(is_ours(ours), "{ours}");
        }
        for foreign in
            ["tidegate:plugin/log@0.9.0", "tidegate:plugin/log", "tidegate:plugen/log@0.1.0", "wasi:io/poll@0.2.0"]
        {
            assert!(!is_ours(foreign), "{foreign}");
        }
    }

    #[test]
    fn a_parser_that_panics_is_an_error() {
        let error = on_large_stack(|| -> () { panic!("on purpose") }).expect_err("an error");
        assert!(error.contains("on purpose"), "{error}");
    }
}
