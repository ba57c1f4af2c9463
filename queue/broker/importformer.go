package broker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// importedKey returns the key of the object that a shard creates once it has the jobs of the former shards.
// It has the keys of their tokens.
func importedKey(root string, set *queue.Settings, index int) string {
	return shardPrefix(root, set, index) + "/imported"
}

// importFormer gives a shard that was just taken over the jobs of the former shards, if it does not have
// them yet. It returns the keys of the tokens of former shards. A shard of a queue that was never resharded
// costs nothing.
func (b *Broker) importFormer(ctx context.Context, set *queue.Settings, index int, log *journal.Log, l *ledger.Ledger) ([]formerKey, error) {
	if set.Layout == 0 {
		return nil, nil
	}
	key := importedKey(b.cfg.Root, set, index)
	o, err := readObject(ctx, b.cfg.Bucket, key)
	switch {
	case err == nil && (l.Imported() || set.Resharding.Stage != queue.Importing):
		return parseSecrets(o.Data)
	case err == nil: // it is created after the import is durable
		return nil, fmt.Errorf("%w: %s exists, but the shard has not got the jobs of the former shards", blob.ErrCorrupt, key)
	case errors.Is(err, blob.ErrNotFound) && set.Resharding.Stage != queue.Importing:
		return nil, nil
	case err != nil && !errors.Is(err, blob.ErrNotFound):
		return nil, fmt.Errorf("read %s: %w", key, err)
	}
	former := *set
	former.Shards, former.Incarnation = set.Resharding.Shards, set.Resharding.Incarnation
	sources := make([]*manifest, former.Shards)
	err = inParallel(former.Shards, func(n int) (err error) {
		sources[n], err = readManifest(ctx, b.cfg.Bucket, reshardPrefix(b.cfg.Root, &former, n, set.Incarnation), set.Shards)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !l.Imported() {
		if !l.Fresh() {
			return nil, fmt.Errorf("%w: the shard has jobs although it has not got those of the former shards", blob.ErrCorrupt)
		}
		i := importer{b: b, set: set, index: index, log: log, l: l, sources: sources, prefix: shardPrefix(b.cfg.Root, set, index)}
		if err := i.run(ctx); err != nil {
			return nil, fmt.Errorf("import the jobs of the former shards: %w", err)
		}
	}
	text, err := json.Marshal(newestSecrets(sources))
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", key, err)
	}
	// Only now may the former shards be deleted.
	if err := createOwn(ctx, b.cfg.Bucket, key, text); err != nil {
		return nil, fmt.Errorf("store %s: %w", key, err)
	}
	return parseSecrets(text)
}

// newestSecrets returns the keys of the former shards' tokens: their own ones, and then those that they
// have from shards before them, up to maxSecrets.
func newestSecrets(sources []*manifest) []secret {
	var own, inherited []secret
	seen := map[string]bool{}
	for _, m := range sources {
		for n, s := range m.Secrets {
			if id := fmt.Sprintf("%d %x", s.Shard, s.Key); seen[id] {
				continue
			} else if seen[id] = true; n == 0 {
				own = append(own, s)
			} else {
				inherited = append(inherited, s)
			}
		}
	}
	all := slices.Concat(own, inherited)
	return all[:min(len(all), maxSecrets)]
}

func parseSecrets(text []byte) ([]formerKey, error) {
	var all []secret
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("%w: the keys of former tokens: %w", blob.ErrCorrupt, err)
	}
	out := make([]formerKey, len(all))
	for i, s := range all {
		out[i] = formerKey{s, newTokenCodecs(s.Key)}
	}
	return out, nil
}

// importer writes the jobs of the former shards into the log of a new shard, and applies them. Nobody can
// see the shard meanwhile. If it ends early, the next owner begins again.
type importer struct {
	b       *Broker
	set     *queue.Settings
	index   int
	prefix  string
	log     *journal.Log
	l       *ledger.Ledger
	sources []*manifest

	at      time.Time
	records [][]byte // to append
	bytes   int
	ids     map[ledger.ID]bool // of the jobs in records
	slot    uint64             // of the newest append
	jobs    int
}

const importBatch = 1 << 20 // bytes of records in one append, by default

func (i *importer) run(ctx context.Context) error {
	begun := time.Now()
	newest := int64(0)
	var totals [6]uint64
	paused := false
	for n, m := range i.sources {
		newest, paused = max(newest, m.Time), paused || m.Paused
		if n%i.set.Shards == i.index { // each former shard's counts go to one new shard
			for k := range totals {
				totals[k] += m.Totals[k]
			}
		}
	}
	if i.at = i.b.cfg.Now(); i.at.UnixMilli() < newest {
		i.at = time.UnixMilli(newest)
	}
	i.at = i.log.Now(i.at)
	i.ids = map[ledger.ID]bool{}
	err := i.add(ctx, &ledger.Record{Kind: ledger.ImportBegin})
	if err == nil {
		err = i.add(ctx, &ledger.Record{Kind: ledger.Configure, Config: ledgerConfig(i.set)})
	}
	if err == nil {
		err = i.flush(ctx) // now the ledger has nothing of an earlier import, so no ID seems to be taken
	}
	if err == nil {
		err = i.merge(ctx, func(m *manifest) []object { return m.Keys[i.index] }, i.job)
	}
	if err == nil {
		err = i.merge(ctx, func(m *manifest) []object { return m.Ended }, i.ended)
	}
	if err != nil {
		return err
	}
	t := totals
	end := ledger.ImportEndRecord(ledger.Totals{Enqueued: t[0], Completed: t[1], Failed: t[2], Expired: t[3], Cancelled: t[4], Died: t[5]}, paused)
	if err = i.flush(ctx); err == nil { // the ledger has taken everything before the end is written
		err = i.add(ctx, end)
	}
	if err == nil {
		err = i.flush(ctx)
	}
	if err != nil {
		return err
	}
	if err := i.wait(ctx, func() bool { return i.log.Durable() >= i.slot }); err != nil {
		return err
	}
	i.b.cfg.Logger.InfoContext(ctx, "a shard has the jobs of the former shards", "queue", i.set.Name, "shard", i.index, "jobs", i.jobs, "took", time.Since(begun))
	return nil
}

// merge reads objects of all former shards and passes their records on, the oldest first. Those of one
// former shard keep their order.
func (i *importer) merge(ctx context.Context, of func(*manifest) []object, each func(context.Context, *ledger.ImportedRecord) error) error {
	open := make([]*exportReader, len(i.sources))
	err := inParallel(len(open), func(n int) error {
		r := &exportReader{bucket: i.b.cfg.Bucket, left: of(i.sources[n])}
		more, err := r.next(ctx)
		if more {
			open[n] = r
		}
		return err
	})
	if err != nil {
		return err
	}
	open = slices.DeleteFunc(open, func(r *exportReader) bool { return r == nil })
	for len(open) > 0 {
		oldest := 0
		for n := range open {
			if open[n].record.At() < open[oldest].record.At() {
				oldest = n
			}
		}
		if err := each(ctx, &open[oldest].record); err != nil {
			return err
		}
		if more, err := open[oldest].next(ctx); err != nil {
			return err
		} else if !more {
			open = append(open[:oldest], open[oldest+1:]...)
		}
	}
	return nil
}

// job imports a job. Two former shards may have had jobs of different groups with the same ID; the second one
// gets another ID, because one shard cannot have both.
func (i *importer) job(ctx context.Context, r *ledger.ImportedRecord) error {
	id := r.ID()
	for i.isTaken(id) { // more than once if an earlier change has given the new ID already
		sum := sha256.Sum256([]byte("emitd resharded job\x00" + r.Group() + "\x00" + id.String()))
		next := uuid.UUID(sum[:16])
		next[6], next[8] = next[6]&0x0f|0x80, next[8]&0x3f|0x80
		i.b.cfg.Logger.WarnContext(ctx, "two jobs of different groups have one ID, and come to one shard: one of them gets another ID",
			"queue", i.set.Name, "shard", i.index, "id", id.String(), "group", r.Group(), "new_id", next.String())
		id = ledger.Pack(next.String())
		r.SetID(id)
	}
	if key := r.Blob(); key != "" {
		copied, err := i.copyPayload(ctx, key)
		if err != nil {
			return err
		}
		r.SetBlob(copied)
	}
	i.ids[id] = true
	i.jobs++
	return i.add(ctx, r.Record(i.l))
}

// isTaken reports whether a job of the shard has the ID.
func (i *importer) isTaken(id ledger.ID) bool {
	state, _ := i.l.Lookup(id)
	return state != ledger.None || i.ids[id]
}

// copyPayload copies a payload object, because those of former shards are deleted. If it is gone, its job becomes
// a dead letter when it is claimed.
func (i *importer) copyPayload(ctx context.Context, key string) (string, error) {
	var payload []byte
	err := persistently(ctx, func() (err error) {
		payload, err = payloadOf(ctx, i.b.cfg.Bucket, key)
		return err
	})
	if errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrCorrupt) {
		i.b.cfg.Logger.ErrorContext(ctx, "the payload of a job is lost", "queue", i.set.Name, "shard", i.index, "key", key, "error", err)
		return key, nil
	}
	if err != nil {
		return "", fmt.Errorf("copy a payload: %w", err)
	}
	own := payloads{prefix: blobPrefix(i.prefix), epoch: i.log.Epoch()}
	next := own.newKey(payload)
	if err := createOwn(ctx, i.b.cfg.Bucket, next, payload); err != nil {
		return "", fmt.Errorf("copy a payload: %w", err)
	}
	return next, nil
}

// ended imports an ID in the deduplication window. Former shards do not know whether the job had a group, so
// every new shard remembers it; the one of the ID has the result.
func (i *importer) ended(ctx context.Context, r *ledger.ImportedRecord) error {
	if shardOf(r.ID().String(), i.set.Shards) != i.index {
		r.DropResult()
	}
	state, _ := i.l.Lookup(r.ID())
	if known := state == ledger.Completed || state == ledger.Cancelled; state != ledger.None && (!known || !r.HasResult()) {
		return nil
	}
	return i.add(ctx, r.Record(i.l))
}

// add adds a record to the next append.
func (i *importer) add(ctx context.Context, r *ledger.Record) error {
	b := r.Append(nil)
	i.records, i.bytes = append(i.records, b), i.bytes+len(b)
	if i.bytes < i.b.importBatch {
		return nil
	}
	return i.flush(ctx)
}

// flush appends the records and applies them.
func (i *importer) flush(ctx context.Context) error {
	if len(i.records) == 0 {
		return nil
	}
	for {
		durable := i.log.Durable()
		slot, err := i.log.Append(i.at, i.records...)
		if err == nil {
			i.slot = slot
			break
		}
		if !errors.Is(err, journal.ErrFull) {
			return err
		}
		if err := i.wait(ctx, func() bool { return i.log.Durable() > durable }); err != nil {
			return err
		}
	}
	for _, b := range i.records {
		if err := i.l.Replay(b, i.at.UnixMilli(), i.slot); err != nil {
			return err
		}
	}
	i.records, i.bytes = i.records[:0], 0
	clear(i.ids)
	return nil
}

// wait waits for acknowledgements of the log until the condition holds.
func (i *importer) wait(ctx context.Context, until func() bool) error {
	for !until() {
		select {
		case <-i.log.Acks():
		case <-i.log.Done():
			if until() {
				return nil
			}
			return i.log.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// exportReader reads the records in exported objects, one after the other.
type exportReader struct {
	bucket blob.Bucket
	left   []object
	data   []byte
	record ledger.ImportedRecord
}

// next reads the next record. It returns false if there is none.
func (r *exportReader) next(ctx context.Context) (bool, error) {
	for len(r.data) == 0 {
		if len(r.left) == 0 {
			return false, nil
		}
		o := r.left[0]
		r.left = r.left[1:]
		read, err := readObject(ctx, r.bucket, o.Key)
		if err != nil {
			return false, fmt.Errorf("read %s: %w", o.Key, err)
		}
		if sum := sha256.Sum256(read.Data); len(read.Data) != o.Size || hex.EncodeToString(sum[:]) != o.Digest {
			return false, fmt.Errorf("%w: %s differs from what was exported", blob.ErrCorrupt, o.Key)
		}
		r.data = read.Data
	}
	var err error
	if r.data, err = r.record.ReadExport(r.data); err != nil {
		return false, fmt.Errorf("%w: an exported record: %w", blob.ErrCorrupt, err)
	}
	return true, nil
}
