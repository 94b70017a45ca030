//! A thread: reads some partitions with librdkafka, writes bronze's and silver's files, counts for gold.

use crate::event::{decode, Event};
use crate::rows::{schema, Record, Rows};
use crate::table::{properties, write_file, Added};
use ahash::RandomState;
use parquet::arrow::ArrowWriter;
use rdkafka_sys as rd;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::os::raw::c_char;
use std::ptr;

pub type Map<K, V> = HashMap<K, V, RandomState>;

/// Magic byte, schema id, message index.
const FRAME_BYTES: usize = 6;
/// Rows of a batch of bronze, and of a file of silver.
const BATCH_ROWS: usize = 131_072;
const FILE_ROWS: usize = 500_000;
const SMALL_ROWS: usize = 10_000;
const CALL: usize = 20_000;
const OPTIONS: [(&str, &str); 7] = [
    ("group.id", "native"),
    ("enable.auto.commit", "false"),
    ("fetch.wait.max.ms", "5"),
    ("queued.min.messages", "500000"),
    ("fetch.message.max.bytes", "4194304"),
    ("fetch.max.bytes", "52428800"),
    ("queued.max.messages.kbytes", "131072"),
];

/// Number, first and last time of a gamer's events.
#[derive(Clone, Copy)]
pub struct Count {
    pub events: i64,
    pub first_us: i64,
    pub last_us: i64,
}

/// Rows of a game that wait, its files, its gamers.
pub struct Game {
    rows: Rows,
    pub files: Vec<Added>,
    pub gamers: Map<String, Count>,
}

/// What a thread has done.
pub struct Done {
    pub records: u64,
    pub bronze: Vec<Added>,
    pub games: Map<String, Game>,
}

/// Partition, first offset, end.
pub type Range = (i32, i64, i64);

/// A consumer that reads nothing yet.
pub struct Consumer(pub *mut rd::rd_kafka_t);

impl Consumer {
    pub fn new(servers: &str) -> Self {
        let mut error = [0 as c_char; 512];
        unsafe {
            let options = rd::rd_kafka_conf_new();
            for (key, value) in OPTIONS.iter().copied().chain([("bootstrap.servers", servers)]) {
                let (key, value) = (CString::new(key).unwrap(), CString::new(value).unwrap());
                let set = rd::rd_kafka_conf_set(options, key.as_ptr(), value.as_ptr(), error.as_mut_ptr(), error.len());
                assert!(
                    set == rd::rd_kafka_conf_res_t::RD_KAFKA_CONF_OK,
                    "{:?}",
                    CStr::from_ptr(error.as_ptr())
                );
            }
            let kind = rd::rd_kafka_type_t::RD_KAFKA_CONSUMER;
            let made = rd::rd_kafka_new(kind, options, error.as_mut_ptr(), error.len());
            assert!(!made.is_null(), "{:?}", CStr::from_ptr(error.as_ptr()));
            rd::rd_kafka_poll_set_consumer(made);
            Consumer(made)
        }
    }

    /// First offset and end of a partition.
    pub fn edges(&self, topic: &CString, partition: i32) -> (i64, i64) {
        let (mut low, mut high) = (0, 0);
        let asked = unsafe {
            rd::rd_kafka_query_watermark_offsets(self.0, topic.as_ptr(), partition, &mut low, &mut high, 10_000)
        };
        assert!(
            asked == rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR,
            "the broker does not answer"
        );
        (low, high)
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        unsafe {
            rd::rd_kafka_consumer_close(self.0);
            rd::rd_kafka_destroy(self.0);
        }
    }
}

struct Worker {
    id: usize,
    root: String,
    waiting: Rows,
    writer: ArrowWriter<File>,
    done: Done,
}

/// Read the ranges and write what is in them.
pub fn work(id: usize, servers: &str, topic: &CString, ranges: &[Range], root: &str) -> Done {
    fs::create_dir_all(format!("{root}/bronze")).unwrap();
    let file = File::create(format!("{root}/bronze/part-{id}.parquet")).unwrap();
    let writer = ArrowWriter::try_new(file, schema(true), Some(properties(false))).unwrap();
    let done = Done {
        records: 0,
        bronze: vec![],
        games: Map::default(),
    };
    let mut worker = Worker {
        id,
        root: root.into(),
        waiting: Rows::new(true),
        writer,
        done,
    };
    unsafe { read(servers, topic, ranges, &mut worker) };
    worker.finish()
}

unsafe fn read(servers: &str, topic: &CString, ranges: &[Range], worker: &mut Worker) {
    let consumer = Consumer::new(servers);
    let list = rd::rd_kafka_topic_partition_list_new(ranges.len() as i32);
    let mut ends: Map<i32, i64> = Map::default();
    for (partition, start, end) in ranges.iter().filter(|(_, start, end)| start < end) {
        (*rd::rd_kafka_topic_partition_list_add(list, topic.as_ptr(), *partition)).offset = *start;
        ends.insert(*partition, *end);
    }
    rd::rd_kafka_assign(consumer.0, list);
    rd::rd_kafka_topic_partition_list_destroy(list);
    let mut left: i64 = ranges.iter().map(|(_, start, end)| end - start).sum();
    let queue = rd::rd_kafka_queue_get_consumer(consumer.0);
    let mut messages: Vec<*mut rd::rd_kafka_message_t> = vec![ptr::null_mut(); CALL];
    while left > 0 {
        let count = rd::rd_kafka_consume_batch_queue(queue, 20, messages.as_mut_ptr(), messages.len());
        for message in messages.iter().take(count.max(0) as usize) {
            let found = &**message;
            let good = found.err == rd::rd_kafka_resp_err_t::RD_KAFKA_RESP_ERR_NO_ERROR;
            if good && found.offset < *ends.get(&found.partition).unwrap_or(&0) {
                left -= 1;
                worker.take(&record(*message));
            }
            rd::rd_kafka_message_destroy(*message);
        }
        worker.flush(BATCH_ROWS);
    }
    rd::rd_kafka_queue_destroy(queue);
}

unsafe fn record<'a>(message: *mut rd::rd_kafka_message_t) -> Record<'a> {
    let found = &*message;
    let mut kind = rd::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
    let time_us = rd::rd_kafka_message_timestamp(message, &mut kind) * 1_000;
    let key = if found.key.is_null() {
        &[][..]
    } else {
        std::slice::from_raw_parts(found.key as *const u8, found.key_len)
    };
    let value = std::slice::from_raw_parts(found.payload as *const u8, found.len);
    Record {
        partition: found.partition,
        offset: found.offset,
        time_us,
        key,
        value,
    }
}

impl Worker {
    #[inline]
    fn take(&mut self, record: &Record) {
        let event = decode(&record.value[FRAME_BYTES..]).expect("a record that does not decode");
        self.done.records += 1;
        self.waiting.push(record, &event);
        if !self.done.games.contains_key(event.game) {
            let game = Game {
                rows: Rows::new(false),
                files: vec![],
                gamers: Map::default(),
            };
            self.done.games.insert(event.game.to_string(), game);
        }
        let game = self.done.games.get_mut(event.game).unwrap();
        game.rows.push(record, &event);
        game.count(&event);
        if game.rows.count >= FILE_ROWS {
            game.flush(event.game, &self.root, self.id);
        }
    }

    /// Write bronze's rows if there are so many.
    fn flush(&mut self, least: usize) {
        if self.waiting.count >= least {
            self.writer.write(&self.waiting.take()).unwrap();
        }
    }

    fn finish(mut self) -> Done {
        self.flush(1);
        self.writer.close().unwrap();
        let path = format!("part-{}.parquet", self.id);
        let size = fs::metadata(format!("{}/bronze/{path}", self.root)).unwrap().len();
        if self.done.records > 0 {
            self.done.bronze.push(Added {
                path,
                size,
                rows: self.done.records as usize,
                game: None,
            });
        }
        for (name, game) in self.done.games.iter_mut() {
            game.flush(name, &self.root, self.id);
        }
        self.done
    }
}

impl Game {
    #[inline]
    fn count(&mut self, event: &Event) {
        let time_us = event.time_us;
        match self.gamers.get_mut(event.gamer) {
            Some(count) => {
                count.events += 1;
                count.first_us = count.first_us.min(time_us);
                count.last_us = count.last_us.max(time_us);
            }
            None => {
                self.gamers.insert(
                    event.gamer.to_string(),
                    Count {
                        events: 1,
                        first_us: time_us,
                        last_us: time_us,
                    },
                );
            }
        }
    }

    fn flush(&mut self, name: &str, root: &str, id: usize) {
        if self.rows.count > 0 {
            let small = self.rows.count < SMALL_ROWS;
            let file = format!("part-{id}-{}.parquet", self.files.len());
            self.files.push(write_file(
                &format!("{root}/silver_{name}"),
                &file,
                &self.rows.take(),
                small,
            ));
        }
    }
}
