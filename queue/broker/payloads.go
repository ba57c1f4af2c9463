package broker

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"

	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// payloads is the payload objects of one shard: it makes their keys, and deletes those that are not
// needed any more. A goroutine deletes them one after the other. It exists only while there is
// something to delete: most shards are idle, and a process has thousands.
type payloads struct {
	bucket blob.Bucket
	prefix string // of the objects' keys
	epoch  int64
	ctx    context.Context // of the run
	logger *slog.Logger

	mu      sync.Mutex
	keys    []string // to delete
	busy    bool     // the goroutine is running
	over    bool     // no more keys are accepted
	running sync.WaitGroup
}

// newKey returns the key for a payload that is stored now.
func (p *payloads) newKey(payload []byte) string {
	return fmt.Sprintf("%s%d-%s-%s", p.prefix, p.epoch, uuid.NewString(), digest(payload))
}

// begin deletes the payload objects of earlier epochs that no job refers to, on a goroutine. An earlier
// broker left them if it died between writing the object and the job's record, or between the job's
// end and the deletion. This is safe because the ledger has all that earlier brokers recorded, and
// they can record nothing more. unreferenced asks the ledger; it fails when the run has ended.
func (p *payloads) begin(unreferenced func(keys map[string]bool) ([]string, error)) {
	p.busy = true
	p.running.Go(func() {
		p.deleteOrphans(unreferenced)
		p.deleteAll()
	})
}

// delete schedules the deletion of an object. If too many wait already, the object stays: it only
// costs storage, and the shard's next broker finds it. Any goroutine may call it.
func (p *payloads) delete(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over || len(p.keys) >= inboxSize {
		return
	}
	p.keys = append(p.keys, key)
	if !p.busy {
		p.busy = true
		p.running.Go(p.deleteAll)
	}
}

// deleteOf schedules the deletion of the payload objects of jobs that a record ends. The ledger still has
// the jobs.
func (p *payloads) deleteOf(r *ledger.Record, l *ledger.Ledger) {
	if r.Kind != ledger.Complete && r.Kind != ledger.Cancel && r.Kind != ledger.Purge {
		return
	}
	for _, n := range r.Numbers {
		if key := l.Blob(n); key != "" {
			p.delete(key)
		}
	}
}

// end accepts no more keys and waits until all are deleted.
func (p *payloads) end() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.running.Wait()
}

// deleteAll deletes the scheduled objects. Once the run has ended, the remaining ones stay.
func (p *payloads) deleteAll() {
	for key, ok := p.next(); ok; key, ok = p.next() {
		if p.ctx.Err() == nil {
			p.remove(key)
		}
	}
}

// next returns the next key to delete. If there is none, the goroutine must end.
func (p *payloads) next() (key string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) == 0 {
		p.keys, p.busy = nil, false
		return "", false
	}
	key, p.keys = p.keys[0], p.keys[1:]
	return key, true
}

func (p *payloads) deleteOrphans(unreferenced func(keys map[string]bool) ([]string, error)) {
	earlier, err := p.earlierEpochs()
	if err != nil && p.ctx.Err() == nil {
		p.logger.WarnContext(p.ctx, "cannot list unused payloads", "prefix", p.prefix, "error", err)
	}
	if len(earlier) == 0 {
		return
	}
	keys, err := unreferenced(earlier)
	if err != nil {
		return // the run has ended: the next broker does it
	}
	for _, key := range keys {
		p.remove(key)
	}
}

// earlierEpochs lists the objects of earlier epochs.
func (p *payloads) earlierEpochs() (map[string]bool, error) {
	out := map[string]bool{}
	for after := ""; ; {
		page, err := p.bucket.List(p.ctx, p.prefix, after, 0)
		if err != nil {
			return out, err
		}
		for _, e := range page.Entries {
			epoch, _, _ := strings.Cut(e.Key[len(p.prefix):], "-")
			if n, err := strconv.ParseInt(epoch, 10, 64); err == nil && n < p.epoch {
				out[e.Key] = true
			}
			after = e.Key
		}
		if !page.More {
			return out, nil
		}
	}
}

// remove deletes one object; an error is only logged.
func (p *payloads) remove(key string) {
	if err := p.bucket.Delete(p.ctx, key); err != nil && p.ctx.Err() == nil {
		p.logger.WarnContext(p.ctx, "cannot delete an unused payload", "key", key, "error", err)
	}
}
