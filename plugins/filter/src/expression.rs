//! The expression: compiled and checked once, evaluated per record.

use std::{fmt, sync::Arc};

use cel::{
    Context, Env, ExecutionError, Program, Value,
    common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr},
};
use tidegate_plugin::{Fields, RecordRef};

use crate::values;

/// What an expression can read, and the field each needs.
const VARIABLES: [(&str, Fields); 6] = [
    ("key", Fields::KEY),
    ("value", Fields::VALUE),
    ("headers", Fields::HEADERS),
    ("topic", Fields::TOPIC),
    ("timestamp", Fields::TIMESTAMP),
    ("offset", Fields::OFFSET),
];
/// Bytes of an expression: one that is longer wants to be a plugin.
const EXPRESSION_BYTES_MAX: usize = 16 << 10;

/// A compiled expression.
pub(crate) struct Expression {
    env: Arc<Env>,
    program: Program,
    /// The variables it reads.
    reads: Vec<&'static str>,
    fields: Fields,
}

/// One expression over the records of one batch.
pub(crate) struct Judge<'e> {
    expression: &'e Expression,
    context: Context<'static, 'static>,
}

/// Why there is no answer. It names members and types, never values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unjudged(String);

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// If it does not parse, or reads something that no record has.
    pub(crate) fn compile(source: &str) -> Result<Self, String> {
        if source.len() > EXPRESSION_BYTES_MAX {
            return Err(format!("{} bytes, at most {EXPRESSION_BYTES_MAX} are taken", source.len()));
        }
        let env = Arc::new(Env::stdlib());
        let program = env.compile(source).map_err(|error| error.to_string())?;
        let mut reads = Vec::new();
        free_variables(program.expression(), &mut Vec::new(), &mut reads);
        let mut fields = Fields::empty();
        let mut known = Vec::new();
        for name in reads {
            let Some((variable, field)) = VARIABLES.iter().find(|(variable, _)| *variable == name) else {
                let names: Vec<&str> = VARIABLES.iter().map(|(variable, _)| *variable).collect();
                return Err(format!("{name:?} is none of {}", names.join(", ")));
            };
            fields |= *field;
            if !known.contains(variable) {
                known.push(*variable);
            }
        }
        Ok(Self { env, program, reads: known, fields })
    }

    /// The fields it reads.
    pub(crate) fn fields(&self) -> Fields {
        self.fields
    }

    /// Begins a batch.
    pub(crate) fn judge(&self) -> Judge<'_> {
        Judge { expression: self, context: Context::with_env(Arc::clone(&self.env)) }
    }
}

impl Judge<'_> {
    /// Whether the expression is true of a record.
    ///
    /// # Errors
    /// If it has no answer: a member is missing, types do not fit, the value is not JSON.
    pub(crate) fn holds(&mut self, record: RecordRef<'_>) -> Result<bool, Unjudged> {
        for variable in &self.expression.reads {
            let value = match *variable {
                "key" => values::bytes(record.key()),
                "value" => values::json(record.value()).ok_or_else(|| Unjudged("the value is not JSON".to_owned()))?,
                "headers" => values::headers(record.headers()),
                "topic" => values::levels(record.topic()),
                "timestamp" => Value::Int(record.timestamp_ms()),
                _ => values::number(record.offset()),
            };
            self.context.add_variable_from_value(*variable, value);
        }
        match self.expression.program.execute(&self.context) {
            Ok(Value::Bool(holds)) => Ok(holds),
            Ok(other) => Err(Unjudged(format!("the expression gives {}, not true or false", other.type_of()))),
            Err(error) => Err(told(&error)),
        }
    }
}

/// The errors of the library quote the values they stumbled over; a reason must not.
fn told(error: &ExecutionError) -> Unjudged {
    Unjudged(match error {
        ExecutionError::NoSuchKey(name) => format!("no member {name:?}"),
        ExecutionError::NoSuchOverload(overload) => overload.to_string(),
        ExecutionError::UndeclaredReference(name) => format!("{name:?} is not known"),
        ExecutionError::UnexpectedType { got, want } => format!("{got} where {want} is wanted"),
        ExecutionError::FunctionError { function, .. } => format!("the function {function} failed"),
        ExecutionError::IndexOutOfBounds(_) => "an index is out of bounds".to_owned(),
        ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_) => "division by zero".to_owned(),
        ExecutionError::Overflow(..) => "a number is too large".to_owned(),
        _ => "types do not fit".to_owned(),
    })
}

/// Collects the variables an expression reads that it does not bind itself (`x` in `list.exists(x, …)`).
fn free_variables<'e>(expression: &'e IdedExpr, bound: &mut Vec<&'e str>, free: &mut Vec<&'e str>) {
    match &expression.expr {
        Expr::Ident(name) if !name.starts_with('@') && !bound.contains(&name.as_str()) => free.push(name),
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) => {}
        Expr::Call(call) => {
            call.target.iter().for_each(|target| free_variables(target, bound, free));
            call.args.iter().for_each(|argument| free_variables(argument, bound, free));
        }
        Expr::Select(select) => free_variables(&select.operand, bound, free),
        Expr::List(list) => list.elements.iter().for_each(|element| free_variables(element, bound, free)),
        Expr::Map(map) => map.entries.iter().for_each(|entry| in_entry(&entry.expr, bound, free)),
        Expr::Struct(fields) => fields.entries.iter().for_each(|entry| in_entry(&entry.expr, bound, free)),
        Expr::Comprehension(comprehension) => in_comprehension(comprehension, bound, free),
    }
}

fn in_entry<'e>(entry: &'e EntryExpr, bound: &mut Vec<&'e str>, free: &mut Vec<&'e str>) {
    match entry {
        EntryExpr::StructField(field) => free_variables(&field.value, bound, free),
        EntryExpr::MapEntry(entry) => {
            free_variables(&entry.key, bound, free);
            free_variables(&entry.value, bound, free);
        }
    }
}

fn in_comprehension<'e>(within: &'e ComprehensionExpr, bound: &mut Vec<&'e str>, free: &mut Vec<&'e str>) {
    free_variables(&within.iter_range, bound, free);
    free_variables(&within.accu_init, bound, free);
    let outside = bound.len();
    bound.push(&within.accu_var);
    bound.push(&within.iter_var);
    bound.extend(within.iter_var2.as_deref());
    for inner in [&within.loop_cond, &within.loop_step, &within.result] {
        free_variables(inner, bound, free);
    }
    bound.truncate(outside);
}

impl fmt::Display for Unjudged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the filter's expression has no answer: {}", self.0)
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Expression").field("reads", &self.reads).finish_non_exhaustive()
    }
}
