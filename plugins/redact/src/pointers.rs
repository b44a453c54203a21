//! The members to hide, as a tree over their pointers: one walk of a value looks for all of them.

use std::collections::BTreeMap;

/// Where a walk stands in all pointers at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Pointers {
    /// A pointer ends here.
    end: bool,
    /// Members and elements by name.
    named: BTreeMap<String, Self>,
    /// `*`: every member or element.
    any: Option<Box<Self>>,
}

impl Pointers {
    /// Reads pointers (RFC 6901), where a level `*` stands for any member or element.
    ///
    /// # Errors
    /// If there is none, or one does not start with `/`.
    pub(crate) fn parse(texts: &[String]) -> Result<Self, String> {
        if texts.is_empty() {
            return Err("pointers: name at least one member to hide".to_owned());
        }
        let mut root = Self::default();
        for text in texts {
            let Some(levels) = text.strip_prefix('/') else {
                return Err(format!("pointers: {text:?} does not start with \"/\""));
            };
            let mut here = &mut root;
            for level in levels.split('/') {
                here = match level {
                    "*" => here.any.get_or_insert_default(),
                    level => here.named.entry(level.replace("~1", "/").replace("~0", "~")).or_default(),
                };
            }
            here.end = true;
        }
        root.spread();
        Ok(root)
    }

    /// A pointer ends here: what stands here is hidden as a whole.
    pub(crate) fn is_end(&self) -> bool {
        self.end
    }

    /// Where a walk stands at a member or element of that name, if anything is to be looked for there.
    pub(crate) fn below(&self, name: &str) -> Option<&Self> {
        self.named.get(name).or(self.any.as_deref())
    }

    /// Lets every named place also look for what `*` looks for, so that a walk follows one path only.
    fn spread(&mut self) {
        if let Some(any) = &mut self.any {
            for named in self.named.values_mut() {
                named.merge(any);
            }
            any.spread();
        }
        for named in self.named.values_mut() {
            named.spread();
        }
    }

    fn merge(&mut self, other: &Self) {
        self.end |= other.end;
        for (name, theirs) in &other.named {
            self.named.entry(name.clone()).or_default().merge(theirs);
        }
        if let Some(theirs) = &other.any {
            self.any.get_or_insert_default().merge(theirs);
        }
    }
}
