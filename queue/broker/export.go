package broker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// manifest says what a former shard has exported. Its object is created last, and only once: whatever
// owner of the sealed shard comes first. All of them export the same state.
type manifest struct {
	Format  int        `json:"format"`
	Shards  int        `json:"shards"`  // of the queue from now on
	Time    int64      `json:"time_ms"` // queue time
	Paused  bool       `json:"paused,omitempty"`
	Totals  [6]uint64  `json:"totals"`
	Keys    [][]object `json:"jobs"`  // by new shard, in order
	Ended   []object   `json:"ended"` // IDs in the deduplication window, for all new shards
	Secrets []secret   `json:"secrets"`
}

// object is an exported object.
type object struct {
	Key    string `json:"key"`
	Size   int    `json:"size"`
	Digest string `json:"sha256"`
}

// secret is the key of the tokens of a former shard. The bucket has it in the shard's HEAD as well.
type secret struct {
	Shard int    `json:"shard"`
	Key   []byte `json:"key"`
}

// formerKey verifies tokens of a former shard.
type formerKey struct {
	secret
	codecs *sync.Pool
}

const (
	manifestFormat = 1
	// exportBytes is about how much a shard holds in memory while it exports or imports, and
	// exportObject the most that an object has of it.
	exportBytes  = 64 << 20
	exportObject = 4 << 20
	exportLeast  = 64 << 10
	exportWrites = 8   // objects that are written concurrently
	maxSecrets   = 512 // keys that a shard keeps; the newest ones
)

// objectBytes returns the size at which an exported object ends. It lets an exporter hold one object for each
// new shard in memory, and an importer one for each former shard.
func (b *Broker) objectBytes(former, next int) int {
	return min(b.exportObject, max(exportLeast, exportBytes/max(former, next)))
}

// export writes down the jobs of a sealed shard for the new shards. It does nothing if that was done already.
func (b *Broker) export(ctx context.Context, s *shard) error {
	set := s.settings.Settings
	if set.Resharding.Stage != queue.Moving {
		return fmt.Errorf("%w: the shard is sealed, but by the list of queues its number of shards does not change", blob.ErrCorrupt)
	}
	begun := time.Now()
	prefix := reshardPrefix(b.cfg.Root, set, s.index, set.Resharding.Incarnation)
	if _, err := readObject(ctx, b.cfg.Bucket, prefix+"done"); !errors.Is(err, blob.ErrNotFound) {
		return err
	}
	w := newExportWriter(ctx, b.cfg.Bucket, prefix+uuid.NewString(), set.Resharding.Shards, b.objectBytes(set.Shards, set.Resharding.Shards))
	jobs, err := b.exportJobs(ctx, s, w)
	s.ledger.ExportEnded(func(_ ledger.ID, record []byte) bool {
		w.add(w.shards, record)
		return true
	})
	if err = errors.Join(err, w.close()); err != nil {
		return err
	}
	t := s.ledger.Stats()
	m := manifest{
		Format: manifestFormat, Shards: w.shards, Time: s.ledger.Now(), Paused: t.Paused,
		Totals: [6]uint64{t.Totals.Enqueued, t.Totals.Completed, t.Totals.Failed, t.Totals.Expired, t.Totals.Cancelled, t.Totals.Died},
		Keys:   w.objects[:w.shards], Ended: w.objects[w.shards], Secrets: []secret{{s.index, s.log.Secret()}},
	}
	for _, k := range s.formerKeys {
		m.Secrets = append(m.Secrets, k.secret)
	}
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode what was exported: %w", err)
	}
	err = persistently(ctx, func() error {
		_, err := b.cfg.Bucket.Create(ctx, prefix+"done", text)
		if errors.Is(err, blob.ErrExists) { // this one, or that of another owner: both are right
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("store what was exported: %w", err)
	}
	b.cfg.Logger.InfoContext(ctx, "exported the jobs of a shard", "unit", s.unit.String(), "jobs", jobs, "shards", w.shards, "took", time.Since(begun))
	return nil
}

// exportJobs writes the jobs, each for the new shard of its group or ID.
func (b *Broker) exportJobs(ctx context.Context, s *shard, w *exportWriter) (jobs int, err error) {
	for e := range s.ledger.ExportJobs() {
		if e.Slot != 0 {
			if err := b.exportPayload(ctx, s, e); err != nil {
				return jobs, err
			}
		}
		key := e.Group
		if key == "" {
			key = e.ID.String()
		}
		jobs++
		if w.addJob(shardOf(key, w.shards), e); w.failed() {
			break
		}
	}
	return jobs, nil
}

// exportPayload reads a payload that is in a segment. A job whose payload is gone becomes a dead letter, as it
// would when it is claimed.
func (b *Broker) exportPayload(ctx context.Context, s *shard, e *ledger.ExportedJob) error {
	var g *segment
	err := persistently(ctx, func() (err error) {
		g, err = b.segments.get(ctx, s, e.Slot)
		return err
	})
	if err == nil {
		payload, ok := g.payload(e.Number, e.ID)
		if ok && len(payload) == e.Size {
			e.SetPayload(payload)
			return nil
		}
		err = fmt.Errorf("%w: segment %d has no payload of the job", blob.ErrCorrupt, e.Slot)
	}
	if !errors.Is(err, blob.ErrNotFound) && !errors.Is(err, blob.ErrCorrupt) {
		return err
	}
	cause := truncate("its payload was lost before the queue was resharded: "+err.Error(), queue.MaxCause)
	b.cfg.Logger.ErrorContext(ctx, "the payload of a job is lost; the job is a dead letter", "unit", s.unit.String(), "job", e.ID.String(), "error", err)
	e.PayloadLost(cause, s.ledger.Now())
	return nil
}

// exportWriter gathers records into objects, for each new shard and, last, for all of them.
type exportWriter struct {
	ctx     context.Context
	bucket  blob.Bucket
	prefix  string
	shards  int
	limit   int
	buf     [][]byte
	objects [][]object
	writes  errgroup.Group

	mu  sync.Mutex
	err error
}

func newExportWriter(ctx context.Context, bucket blob.Bucket, prefix string, shards, limit int) *exportWriter {
	w := &exportWriter{
		ctx: ctx, bucket: bucket, prefix: prefix, shards: shards, limit: limit, buf: make([][]byte, shards+1), objects: make([][]object, shards+1),
	}
	for i := range w.objects {
		w.objects[i] = []object{} // JSON: not null
	}
	w.writes.SetLimit(exportWrites)
	return w
}

func (w *exportWriter) addJob(shard int, e *ledger.ExportedJob) {
	w.buf[shard] = e.Append(w.buf[shard])
	w.flush(shard, w.limit)
}

func (w *exportWriter) add(shard int, record []byte) {
	w.buf[shard] = append(w.buf[shard], record...)
	w.flush(shard, w.limit)
}

// flush writes what was gathered for a shard if it has this many bytes.
func (w *exportWriter) flush(shard, least int) {
	data := w.buf[shard]
	if len(data) < least || len(data) == 0 {
		return
	}
	w.buf[shard] = nil
	sum := sha256.Sum256(data)
	o := object{Key: fmt.Sprintf("%s/%d/%06d", w.prefix, shard, len(w.objects[shard])), Size: len(data), Digest: hex.EncodeToString(sum[:])}
	w.objects[shard] = append(w.objects[shard], o)
	w.writes.Go(func() error {
		if err := createOwn(w.ctx, w.bucket, o.Key, data); err != nil {
			w.mu.Lock()
			w.err = errors.Join(w.err, fmt.Errorf("export %s: %w", o.Key, err))
			w.mu.Unlock()
		}
		return nil
	})
}

// failed reports whether a write has failed.
func (w *exportWriter) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err != nil
}

// close writes the rest and waits for all writes.
func (w *exportWriter) close() error {
	for shard := range w.buf {
		w.flush(shard, 0)
	}
	_ = w.writes.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// createOwn creates an object that only this content can have. After an unknown outcome it looks whether the
// object is there.
func createOwn(ctx context.Context, bucket blob.Bucket, key string, data []byte) error {
	return persistently(ctx, func() error {
		_, err := bucket.Create(ctx, key, data)
		if errors.Is(err, blob.ErrUnknownOutcome) || errors.Is(err, blob.ErrExists) {
			o, unread := bucket.Read(ctx, key)
			if unread == nil && bytes.Equal(o.Data, data) {
				return nil
			}
			err = errors.Join(err, unread)
		}
		return err
	})
}

// readObject reads an object. It tries again if the store does not answer.
func readObject(ctx context.Context, bucket blob.Bucket, key string) (o *blob.Object, err error) {
	err = persistently(ctx, func() error {
		o, err = bucket.Read(ctx, key)
		return err
	})
	return o, err
}

const (
	reshardTries = 5
	damagedTries = 3 // one reading may differ from what is stored
)

// persistently repeats a request that failed for a reason that may pass. Nobody serves the shard meanwhile, so a
// run should not end for one lost reply, and a payload does not count as lost for one torn reading.
func persistently(ctx context.Context, request func() error) error {
	pauses := backoff.Policy{First: 50 * time.Millisecond, Limit: 2 * time.Second}
	for tries := 1; ; tries++ {
		err := request()
		if err == nil || tries == reshardTries || errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrDenied) ||
			errors.Is(err, blob.ErrCorrupt) && tries == damagedTries ||
			backoff.Sleep(ctx, pauses.After(tries)) != nil {
			return err
		}
	}
}

// readManifest reads what a former shard has exported. ErrNotFound: nothing yet.
func readManifest(ctx context.Context, bucket blob.Bucket, prefix string, shards int) (*manifest, error) {
	o, err := readObject(ctx, bucket, prefix+"done")
	if err != nil {
		return nil, fmt.Errorf("read what was exported: %w", err)
	}
	var m manifest
	if err := json.Unmarshal(o.Data, &m); err != nil {
		return nil, fmt.Errorf("%w: %sdone: %w", blob.ErrCorrupt, prefix, err)
	}
	if m.Format != manifestFormat || m.Shards != shards || len(m.Keys) != shards {
		return nil, fmt.Errorf("%w: %sdone has format %d and is for %d shards, want %d and %d", blob.ErrCorrupt, prefix, m.Format, m.Shards, manifestFormat, shards)
	}
	for _, list := range append(m.Keys, m.Ended) {
		for _, o := range list {
			if !strings.HasPrefix(o.Key, prefix) {
				return nil, fmt.Errorf("%w: %sdone names %s", blob.ErrCorrupt, prefix, o.Key)
			}
		}
	}
	return &m, nil
}
