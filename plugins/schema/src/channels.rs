//! From a topic to the channel whose address it matches. Knows nothing of messages.
//!
//! An address is a path of levels like a topic; `{NAME}` in a level is a parameter and stands for one or more bytes
//! within that level (`orders/{region}/created`, `red-{n}`). Where several addresses match, the one with the most
//! literal bytes wins, then the first in alphabetical order of channel names.

use std::collections::HashMap;

/// The addresses of a document.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    literal: HashMap<String, usize>,
    parametric: Vec<(Address, usize)>,
}

/// A channel found by topic.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found<'t> {
    /// Number of the channel, as given to [`Channels::add`].
    pub(crate) channel: usize,
    /// Values of the address parameters in order.
    pub(crate) parameters: Vec<&'t str>,
}

#[derive(Debug)]
struct Address {
    levels: Vec<Level>,
    literal_bytes: usize,
}

#[derive(Debug)]
enum Level {
    Literal(String),
    /// What stands before and behind a parameter in its level, and the values it may take (empty = any).
    Parameter(String, String, Vec<String>),
}

impl Channels {
    /// Adds one address. `values` tells the values a parameter may take, empty for any.
    ///
    /// # Errors
    /// If a level holds more than one parameter, or a brace does not close.
    pub(crate) fn add(
        &mut self,
        address: &str,
        channel: usize,
        values: impl Fn(&str) -> Vec<String>,
    ) -> Result<(), String> {
        if !address.contains('{') {
            self.literal.entry(address.to_owned()).or_insert(channel);
            return Ok(());
        }
        let levels: Vec<Level> =
            address.split('/').map(|level| Level::parse(level, &values)).collect::<Result<_, _>>()?;
        let literal_bytes = levels.iter().map(Level::literal_bytes).sum();
        self.parametric.push((Address { levels, literal_bytes }, channel));
        self.parametric.sort_by_key(|(address, channel)| (usize::MAX - address.literal_bytes, *channel));
        Ok(())
    }

    /// The channel of a topic.
    pub(crate) fn find<'t>(&self, topic: &'t str) -> Option<Found<'t>> {
        if let Some(&channel) = self.literal.get(topic) {
            return Some(Found { channel, parameters: Vec::new() });
        }
        self.parametric
            .iter()
            .find_map(|(address, channel)| Some(Found { channel: *channel, parameters: address.matched(topic)? }))
    }
}

impl Address {
    fn matched<'t>(&self, topic: &'t str) -> Option<Vec<&'t str>> {
        let mut parameters = Vec::new();
        let mut topic = topic.split('/');
        for level in &self.levels {
            let given = topic.next()?;
            match level {
                Level::Literal(literal) if literal == given => {}
                Level::Literal(_) => return None,
                Level::Parameter(before, behind, values) => {
                    let value = given.strip_prefix(before.as_str())?.strip_suffix(behind.as_str())?;
                    if value.is_empty() || !(values.is_empty() || values.iter().any(|one| one == value)) {
                        return None;
                    }
                    parameters.push(value);
                }
            }
        }
        topic.next().is_none().then_some(parameters)
    }
}

impl Level {
    fn parse(level: &str, values: &impl Fn(&str) -> Vec<String>) -> Result<Self, String> {
        let Some((before, rest)) = level.split_once('{') else {
            return Ok(Self::Literal(level.to_owned()));
        };
        let Some((name, behind)) = rest.split_once('}') else {
            return Err(format!("the brace in the level {level:?} does not close"));
        };
        if behind.contains('{') {
            return Err(format!("the level {level:?} has more than one parameter"));
        }
        Ok(Self::Parameter(before.to_owned(), behind.to_owned(), values(name)))
    }

    fn literal_bytes(&self) -> usize {
        match self {
            Self::Literal(literal) => literal.len(),
            Self::Parameter(before, behind, _) => before.len() + behind.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels(addresses: &[&str]) -> Channels {
        let mut channels = Channels::default();
        for (number, address) in addresses.iter().enumerate() {
            let values =
                |name: &str| if name == "region" { vec!["eu".to_owned(), "us".to_owned()] } else { Vec::new() };
            channels.add(address, number, values).unwrap();
        }
        channels
    }

    #[test]
    fn parameters_match_whole_levels_and_parts() {
        let channels = channels(&["orders/{region}/created", "red-{n}x", "{a}/{b}"]);
        let found = |topic| channels.find(topic).map(|found| (found.channel, found.parameters));
        assert_eq!(found("orders/eu/created"), Some((0, vec!["eu"])));
        assert_eq!(found("orders/asia/created"), None, "not one of the parameter's values");
        assert_eq!(found("red-7x"), Some((1, vec!["7"])));
        assert_eq!(found("red-x"), None, "a parameter is never empty");
        assert_eq!(found("one/two"), Some((2, vec!["one", "two"])));
        assert_eq!(found("one/two/three"), None);
    }

    #[test]
    fn the_most_literal_address_wins() {
        let channels = channels(&["{a}/{b}", "github/{event}", "github/push"]);
        assert_eq!(channels.find("github/push").unwrap().channel, 2);
        assert_eq!(channels.find("github/fork").unwrap().channel, 1);
        assert_eq!(channels.find("gitlab/fork").unwrap().channel, 0);
    }

    #[test]
    fn odd_addresses_are_refused() {
        for address in ["a/{b", "{a}{b}"] {
            assert!(Channels::default().add(address, 0, |_| Vec::new()).is_err(), "{address}");
        }
    }
}
