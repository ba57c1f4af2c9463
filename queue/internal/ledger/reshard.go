package ledger

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The number of a queue's shards changes by moving all jobs to new shards. A former shard's log ends with a
// Seal record: nothing about its jobs is decided any more. Its state is exported ([Ledger.ExportJobs],
// [Ledger.ExportEnded]). A new shard's log begins with an import: ImportBegin, the jobs and the
// deduplication window of the former shards, and ImportEnd. An import that is not complete is void: the
// next one begins with ImportBegin again.
//
// A sealed ledger is never written into a checkpoint, so a version that does not know these records
// cannot take the shard for one that is open.

// Sealed reports whether the shard's jobs move, or have moved, to other shards.
func (l *Ledger) Sealed() bool { return l.sealed }

// Imported reports whether the state of the former shards was imported.
func (l *Ledger) Imported() bool { return l.imported }

// Importing reports whether the ledger has a part of an import that is not complete.
func (l *Ledger) Importing() bool { return l.moving }

// Fresh reports whether an import may begin: nothing was recorded, or only an import that is not complete.
func (l *Ledger) Fresh() bool {
	return !l.imported && (l.moving || l.totals == Totals{} && l.Jobs() == 0)
}

// ExportedJob is a job of a sealed ledger.
type ExportedJob struct {
	Number  uint64
	ID      ID
	Group   string
	Slot    uint64 // of the segment with the payload, if that is not in memory; 0: it is in Record
	Size    int    // of the payload
	Created int64
	record  Record
	save    checkpointFields
}

// SetPayload sets the payload that was read from the job's segment.
func (e *ExportedJob) SetPayload(payload []byte) { e.record.Payload = payload }

// PayloadLost makes the job a dead letter without its payload.
func (e *ExportedJob) PayloadLost(cause string, now int64) {
	e.save.state, e.save.died = Dead, now
	e.record.Until, e.record.RunAt, e.record.Cause, e.record.Size = 0, 0, cause, 0
}

// Append appends the job to b, as ReadExport reads it.
func (e *ExportedJob) Append(b []byte) []byte { return put(b, &e.record) }

// ExportJobs returns the jobs in the order in which equal priorities are claimed. A yielded job is valid until
// the next one.
func (l *Ledger) ExportJobs() iter.Seq[*ExportedJob] {
	var moved []uint32 // jobs whose place is not their number
	l.numbers.from(0, func(_ uint64, i uint32) bool {
		if l.jobs.at(i).flags&movedToEnd != 0 {
			moved = append(moved, i)
		}
		return true
	})
	place := func(i uint32) uint64 { return l.jobs.at(i).place() }
	slices.SortFunc(moved, func(a, b uint32) int { return cmp.Compare(place(a), place(b)) })
	return func(yield func(*ExportedJob) bool) {
		var e ExportedJob
		left, on := moved, true
		emit := func(i uint32) bool {
			l.exported(i, &e)
			on = yield(&e)
			return on
		}
		l.numbers.from(0, func(number uint64, i uint32) bool {
			for len(left) > 0 && place(left[0]) < number {
				if !emit(left[0]) {
					return false
				}
				left = left[1:]
			}
			if j := l.jobs.at(i); j.state == None || j.flags&movedToEnd != 0 {
				return true
			}
			return emit(i)
		})
		for on && len(left) > 0 {
			emit(left[0])
			left = left[1:]
		}
	}
}

// exported fills in a job that is exported.
func (l *Ledger) exported(i uint32, e *ExportedJob) {
	l.saved(i, &e.record, &e.save)
	j, r := l.jobs.at(i), &e.record
	e.Number, e.ID, e.Group, e.Slot, e.Size, e.Created = j.number, j.packed(), r.Group, 0, int(j.size), j.created
	if j.segment != 0 {
		if e.Slot = r.Slot; j.text != nil {
			e.Slot, r.SharedPayload = 0, j.payload()
		}
	}
	r.Kind, r.Slot, e.save.place = ImportJob, 0, 0
	if r.Blob == "" {
		r.Size = 0
	}
}

// ExportEnded appends the IDs in the deduplication window, the one that ended first in front.
func (l *Ledger) ExportEnded(yield func(id ID, record []byte) bool) {
	w := &l.window
	var b []byte
	for pos := w.head; pos < w.tail; pos++ {
		e := w.at(pos)
		if e.state == None || w.expired(e, l.now) {
			continue
		}
		r := Record{
			Kind: ImportEnded, At: e.at, PackedID: w.packed(pos), Nonce: e.nonce, Result: w.result[pos],
			Config: Config{DedupWindow: w.spans[e.span]}, save: &checkpointFields{state: e.state},
		}
		b = put(b[:0], &r)
		if !yield(r.PackedID, b) {
			return
		}
	}
}

// ImportedRecord is a job, or an ID in the deduplication window, that a former shard has exported.
type ImportedRecord struct {
	record Record
}

// ReadExport reads the first record of what Append and ExportEnded wrote, and returns the rest. The
// record points into b.
func (r *ImportedRecord) ReadExport(b []byte) (rest []byte, err error) {
	text, n := protowire.ConsumeBytes(b)
	if n < 0 {
		return nil, fmt.Errorf("read an exported record: %w", ErrCorrupt)
	}
	if err := r.record.decode(text); err != nil {
		return nil, err
	}
	if r.record.Kind != ImportJob && r.record.Kind != ImportEnded {
		return nil, fmt.Errorf("read an exported record of kind %d: %w", r.record.Kind, ErrCorrupt)
	}
	return b[n:], nil
}

// IsJob reports whether the record is a job; otherwise it is an ID in the deduplication window.
func (r *ImportedRecord) IsJob() bool { return r.record.Kind == ImportJob }

// At returns when the job was submitted, or when it ended.
func (r *ImportedRecord) At() int64 { return r.record.At }

// ID returns the job's ID.
func (r *ImportedRecord) ID() ID { return r.record.packed() }

// Group returns the job's group.
func (r *ImportedRecord) Group() string { return r.record.Group }

// Blob returns the key of the job's payload object, or "".
func (r *ImportedRecord) Blob() string { return r.record.Blob }

// SetBlob sets the key of the job's payload object.
func (r *ImportedRecord) SetBlob(key string) { r.record.Blob = key }

// SetID gives the job another ID.
func (r *ImportedRecord) SetID(id ID) { r.record.ID, r.record.PackedID = "", id }

// HasResult reports whether the job had a result.
func (r *ImportedRecord) HasResult() bool { return len(r.record.Result) > 0 }

// DropResult leaves the result out.
func (r *ImportedRecord) DropResult() { r.record.Result = nil }

// Record returns the record for the new shard's log. A job gets the next number of the ledger, and its claim
// the epoch 0, which is older than that of every claim of the new shard.
func (r *ImportedRecord) Record(l *Ledger) *Record {
	if r.IsJob() {
		r.record.Numbers, r.record.Epoch = append(r.record.Numbers[:0], l.NextNumber()), 0
	}
	return &r.record
}

// ImportEndRecord is the record that ends an import, with the counts of former shards.
func ImportEndRecord(t Totals, paused bool) *Record {
	return &Record{Kind: ImportEnd, save: &checkpointFields{
		paused: paused, counts: [6]uint64{t.Enqueued, t.Completed, t.Failed, t.Expired, t.Cancelled, t.Died},
	}}
}

// applyImport applies a record of an import.
func (l *Ledger) applyImport(r *Record) error {
	switch {
	case r.Kind == ImportBegin && !l.imported:
		now, replayed, recent := l.now, l.replayed, l.recent.limit
		l.init(Config{})
		l.now, l.replayed, l.moving = now, replayed, true
		l.recent.limit = recent
		return nil
	case !l.moving || l.imported:
	case r.Kind == ImportEnded:
		l.importEnded(r)
		return nil
	case r.Kind == ImportEnd:
		c := r.save.counts
		l.totals = Totals{c[0], c[1], c[2], c[3], c[4], c[5]}
		l.paused, l.moving, l.imported = r.save.paused, false, true
		l.readyDue()
		return nil
	case r.Kind == ImportJob && !l.isKnown(r.packed()):
		l.next = max(l.next, r.Numbers[0]+1)
		if l.restore(r) {
			return nil
		}
	}
	return fmt.Errorf("apply a record of kind %d: %w", r.Kind, ErrVoid)
}

// importEnded remembers an ID of a former shard. Several may have it; one of them has the result.
func (l *Ledger) importEnded(r *Record) {
	id := r.packed()
	if _, live := l.ids.get(id); live {
		return
	}
	if pos, known := l.window.get(id, l.now); known {
		if len(r.Result) == 0 || l.window.result[pos] != nil {
			return
		}
	}
	var result []byte
	if len(r.Result) > 0 {
		result = slices.Clone(r.Result)
	}
	l.window.add(id, ended{at: r.At, nonce: r.Nonce, state: r.save.state}, r.Config.DedupWindow, result)
	l.window.forget(l.now, l.config.DedupIDs)
}
