//! What a command answers, on stdout, in the form that was asked for. Progress and logs go to stderr.

use clap::ValueEnum;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, TableStyle};
use serde::Serialize;
use serde_json::Value;
use std::io::Write;

/// Text fits this many columns.
const WIDTH: u16 = 80;

/// Breaks lines of text at spaces, so that they fit. A word that is longer (a path, a hash) stays whole.
pub fn wrap(text: &str) -> String {
    textwrap::fill(text, textwrap::Options::new(usize::from(WIDTH)).break_words(false))
}

/// Tables for a reader: one rule, under the headings.
const PLAIN: TableStyle = TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// Forms of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// Tables for a reader
    #[default]
    Text,
    /// One JSON object
    Json,
    /// The first table, or else the fields, as comma-separated values with a header line
    Csv,
    /// Tables in Markdown
    Md,
}

/// An answer: one value for machines, lines and tables for readers.
#[derive(Debug, Clone)]
pub struct Answer {
    json: Value,
    sections: Vec<Section>,
}

/// A part of an answer for readers.
#[derive(Debug, Clone)]
enum Section {
    Line(String),
    Table(Table),
}

/// A table; every row has as many cells as there are columns.
#[derive(Debug, Clone)]
pub struct Table {
    title: String,
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// A column's heading and how its cells stand.
#[derive(Debug, Clone)]
struct Column {
    heading: String,
    alignment: CellAlignment,
}

impl Answer {
    /// `json` is the whole answer: what the lines and tables say is taken from it.
    ///
    /// # Errors
    /// When `json` cannot be serialised (a map with keys that are not strings).
    pub fn new(json: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Answer { json: serde_json::to_value(json)?, sections: Vec::new() })
    }

    /// Adds a member to the answer for machines.
    ///
    /// # Errors
    /// When `value` cannot be serialised.
    pub fn with(mut self, name: &str, value: &impl Serialize) -> Result<Self, serde_json::Error> {
        let value = serde_json::to_value(value)?;
        if let Value::Object(members) = &mut self.json {
            members.insert(name.to_owned(), value);
        }
        Ok(self)
    }

    /// Adds a line of text.
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.sections.push(Section::Line(line.into()));
        self
    }

    /// Adds a table.
    pub fn table(mut self, table: Table) -> Self {
        self.sections.push(Section::Table(table));
        self
    }

    /// Writes the answer to stdout.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub fn print(&self, format: Format) -> anyhow::Result<()> {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(self.render(format)?.as_bytes())?;
        Ok(stdout.flush()?)
    }

    /// The answer as it is printed, with a newline at its end.
    ///
    /// # Errors
    /// When a CSV cell or the JSON value cannot be written.
    pub fn render(&self, format: Format) -> anyhow::Result<String> {
        match format {
            Format::Json => Ok(serde_json::to_string_pretty(&self.json)? + "\n"),
            // Nothing at all is no table: what reads it would miss the header.
            Format::Csv => match self.tables().next() {
                Some(table) => table.csv(),
                None => Table::of_fields("answer", &self.json)?.csv(),
            },
            Format::Text => Ok(self.join(wrap, Table::text)),
            Format::Md => Ok(self.join(str::to_owned, Table::markdown)),
        }
    }

    fn tables(&self) -> impl Iterator<Item = &Table> {
        self.sections.iter().filter_map(|section| match section {
            Section::Table(table) => Some(table),
            Section::Line(_) => None,
        })
    }

    /// Lines stand together, a table stands between empty lines.
    fn join(&self, line_text: impl Fn(&str) -> String, table_text: impl Fn(&Table) -> String) -> String {
        let mut text = String::new();
        let mut after_table = false;
        for section in &self.sections {
            let is_table = matches!(section, Section::Table(_));
            if !text.is_empty() && (is_table || after_table) {
                text.push('\n');
            }
            match section {
                Section::Line(line) => text.push_str(&line_text(line)),
                Section::Table(table) => text.push_str(&table_text(table)),
            }
            text.push('\n');
            after_table = is_table;
        }
        text
    }
}

impl Table {
    /// A table with these headings. A heading that starts with `#` (which is not shown) aligns its column right, as
    /// numbers stand.
    pub fn new(title: impl Into<String>, headings: &[&str]) -> Self {
        let columns = headings
            .iter()
            .map(|heading| match heading.strip_prefix('#') {
                Some(rest) => Column { heading: rest.to_owned(), alignment: CellAlignment::Right },
                None => Column { heading: (*heading).to_owned(), alignment: CellAlignment::Left },
            })
            .collect();
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    /// A value's leaves, a row each, by the path that leads to them.
    ///
    /// # Errors
    /// When the value cannot be serialised.
    pub fn of_fields(title: impl Into<String>, value: &impl Serialize) -> Result<Self, serde_json::Error> {
        let mut table = Table::new(title, &["field", "value"]);
        table.leaves(String::new(), &serde_json::to_value(value)?);
        Ok(table)
    }

    fn leaves(&mut self, path: String, value: &Value) {
        let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        match value {
            Value::Object(members) => members.iter().for_each(|(key, value)| self.leaves(join(key), value)),
            Value::Array(items) if items.iter().any(Value::is_object) => {
                items.iter().enumerate().for_each(|(index, value)| self.leaves(join(&index.to_string()), value));
            }
            Value::Array(items) => self.row([path, items.iter().map(plain).collect::<Vec<_>>().join(", ")]),
            leaf => self.row([path, plain(leaf)]),
        }
    }

    /// Adds a row; cells that are missing stay empty.
    pub fn row<Cell: ToString>(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let mut row: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
        row.resize(self.columns.len(), String::new());
        self.rows.push(row);
    }

    fn text(&self) -> String {
        let mut table = self.styled(PLAIN, short_hash);
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        format!("{}\n{}", self.title, table.trim_fmt())
    }

    fn markdown(&self) -> String {
        let table = self.styled(ASCII_MARKDOWN, |cell| cell.replace('|', "\\|").replace('\n', " "));
        format!("**{}**\n\n{}", self.title, table.trim_fmt())
    }

    fn styled(&self, style: TableStyle, cell_text: impl Fn(&str) -> String) -> comfy_table::Table {
        let mut table = comfy_table::Table::new();
        table.load_style(style).set_header(self.columns.iter().map(|column| &column.heading));
        for row in &self.rows {
            table.add_row(row.iter().map(|cell| cell_text(cell)));
        }
        for (column, shape) in table.column_iter_mut().zip(&self.columns) {
            column.set_cell_alignment(shape.alignment);
        }
        table
    }

    fn csv(&self) -> anyhow::Result<String> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(self.columns.iter().map(|column| &column.heading))?;
        for row in &self.rows {
            writer.write_record(row)?;
        }
        Ok(String::from_utf8(writer.into_inner()?)?)
    }
}

/// A SHA-256 by its first digits, as records are named; every other cell as it is.
fn short_hash(cell: &str) -> String {
    let is_hash = cell.len() == 64 && cell.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { format!("{}…", &cell[..12]) } else { cell.to_owned() }
}

/// A string without its quotes, anything else as JSON.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;
