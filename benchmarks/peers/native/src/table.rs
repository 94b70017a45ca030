//! Files and the first commit of a Delta table.

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;

/// A file of a table: path below it, bytes, rows, value of the partition column.
pub struct Added {
    pub path: String,
    pub size: u64,
    pub rows: usize,
    pub game: Option<String>,
}

pub fn properties(small: bool) -> WriterProperties {
    let kind = if small {
        Compression::SNAPPY
    } else {
        Compression::ZSTD(ZstdLevel::try_new(1).unwrap())
    };
    WriterProperties::builder().set_compression(kind).build()
}

pub fn write_file(folder: &str, name: &str, batch: &RecordBatch, small: bool) -> Added {
    fs::create_dir_all(folder).unwrap();
    let path = format!("{folder}/{name}");
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), Some(properties(small))).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    Added {
        path: name.into(),
        size: fs::metadata(&path).unwrap().len(),
        rows: batch.num_rows(),
        game: None,
    }
}

/// Version 0 of a table; `by`: its partition column, which is none of the schema's.
pub fn commit(folder: &str, schema: &Schema, files: &[Added], by: Option<&str>) {
    let mut fields: Vec<serde_json::Value> = schema
        .fields()
        .iter()
        .map(|f| column(f.name(), name_of(f.data_type())))
        .collect();
    fields.extend(by.map(|name| column(name, "string")));
    let columns: Vec<&str> = by.into_iter().collect();
    let mut lines = vec![
        json!({"commitInfo": {"timestamp": 0, "operation": "WRITE"}}),
        json!({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}),
        json!({"metaData": {
            "id": format!("00000000-0000-0000-0000-{:012}", folder.len()), "format": {"provider": "parquet", "options": {}},
            "schemaString": json!({"type": "struct", "fields": fields}).to_string(),
            "partitionColumns": columns, "configuration": {}, "createdTime": 0,
        }}),
    ];
    for file in files {
        let values = match (by, &file.game) {
            (Some(name), Some(game)) => json!({ name: game }),
            _ => json!({}),
        };
        lines.push(json!({"add": {
            "path": file.path, "partitionValues": values, "size": file.size, "modificationTime": 0, "dataChange": true,
            "stats": json!({"numRecords": file.rows}).to_string(),
        }}));
    }
    fs::create_dir_all(format!("{folder}/_delta_log")).unwrap();
    let log = format!("{folder}/_delta_log/00000000000000000000.json");
    let mut out = File::create_new(&log).unwrap();
    for line in lines {
        writeln!(out, "{line}").unwrap();
    }
}

fn column(name: &str, kind: &str) -> serde_json::Value {
    json!({"name": name, "type": kind, "nullable": true, "metadata": {}})
}

fn name_of(kind: &DataType) -> &'static str {
    match kind {
        DataType::Int32 => "integer",
        DataType::Int64 => "long",
        DataType::Utf8 => "string",
        DataType::Binary => "binary",
        _ => "timestamp",
    }
}
