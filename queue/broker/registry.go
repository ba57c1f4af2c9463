package broker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob"
)

// daemonPrefix is how the name of each queue's daemon begins.
const daemonPrefix = string(queue.Kind) + "/"

// Registry is the list of queues. It is one small object, <root>/v1/queues, that is replaced only
// if it is unchanged since it was read (compare and swap). A copy, <root>/v1/queues.copy, is
// written after it. The copy is read only when the list has changed or is damaged; see
// registrycopy.go. All methods may be called concurrently.
type Registry struct {
	bucket     blob.Bucket
	root       string
	key        string
	copyKey    string
	onChange   func(queue.Settings)
	onRead     func()   // called when another version of the list was read
	maxShards  int      // limit for the shards of all queues together
	emptySince sync.Map // removed queues of which nothing was found: since when
	doubt      atomic.Bool
	reading    atomic.Pointer[listReading]
	readers    singleflight.Group // those who wait for the list without the lock

	mu      chan struct{} // mutex that a context can abandon: guards the object and the fields below
	version blob.Version
	list    registryFile
	readAt  time.Time    // when list was last known to be current; zero: never
	damage  *queue.Error // what is wrong with the object; list is then the newest known
	nonce   string       // of the list that reading is about
	// removedAt says when this process learned of each removed queue that the list names.
	removedAt map[removedQueue]time.Time
}

// registryFile is the content of the object. Its nonce makes every version's bytes different, as
// package blob requires.
type registryFile struct {
	Format int             `json:"format"`
	Nonce  string          `json:"nonce"`
	Serial uint64          `json:"serial,omitempty"` // number of changes so far
	Next   uint64          `json:"next_incarnation"`
	Queues []registryQueue `json:"queues"` // sorted by name
	// Removed are removed queues whose objects are not all deleted yet.
	Removed []removedQueue `json:"removed,omitempty"`
}

// removedQueue identifies the objects of a removed queue.
type removedQueue struct {
	Name        string `json:"name"`
	Incarnation uint64 `json:"incarnation"`
	Shards      int    `json:"shards"`
}

// registryQueue is the stored form of Settings; durations are in milliseconds.
type registryQueue struct {
	Name        string        `json:"name"`
	Incarnation uint64        `json:"incarnation"`
	Shards      int           `json:"shards"`
	Claims      string        `json:"claims,omitempty"`
	Visibility  int64         `json:"visibility_ms,omitempty"`
	TTL         int64         `json:"ttl_ms,omitempty"`
	DedupWindow int64         `json:"dedup_window_ms,omitempty"`
	DedupIDs    int           `json:"dedup_ids,omitempty"`
	MaxJobs     int           `json:"max_jobs,omitempty"`
	MaxBytes    int64         `json:"max_bytes,omitempty"`
	Retry       registryRetry `json:"retry,omitzero"`
	// Layout and Resharding are those of Settings. A list with a Resharding has the format
	// reshardingFormat.
	Layout     uint64             `json:"layout,omitempty"`
	Resharding registryResharding `json:"resharding,omitzero"`
}

type registryResharding struct {
	Stage       queue.Stage `json:"stage"`
	Shards      int         `json:"shards"`
	Incarnation uint64      `json:"incarnation"`
}

type registryRetry struct {
	MaxAttempts int     `json:"max_attempts,omitempty"`
	Backoff     int64   `json:"backoff_ms,omitempty"`
	MaxBackoff  int64   `json:"max_backoff_ms,omitempty"`
	Factor      float64 `json:"factor,omitempty"`
	Jitter      float64 `json:"jitter,omitempty"`
	Back        bool    `json:"back,omitempty"`
}

const (
	registryFormat = 1
	// reshardingFormat is the format of a list with a queue whose number of shards is being
	// changed. Versions that do not know such changes must not write this list: they would lose
	// what they do not know.
	reshardingFormat = 2
)

// storedForm returns the settings as they are stored.
func storedForm(set queue.Settings) registryQueue {
	r := set.Retry
	return registryQueue{
		Name: set.Name, Incarnation: set.Incarnation, Shards: max(1, set.Shards), Claims: set.Claims, Visibility: millis(set.Visibility),
		TTL: millis(set.TTL), DedupWindow: millis(set.DedupWindow), DedupIDs: set.DedupIDs, MaxJobs: set.MaxJobs, MaxBytes: set.MaxBytes,
		Retry:  registryRetry{r.MaxAttempts, millis(r.Backoff), millis(r.MaxBackoff), r.Factor, r.Jitter, r.Back},
		Layout: set.Layout, Resharding: registryResharding(set.Resharding),
	}
}

func (q registryQueue) settings() queue.Settings {
	return queue.Settings{
		Name: q.Name, Incarnation: q.Incarnation, Shards: q.Shards, Claims: q.Claims, Visibility: millisecond(q.Visibility),
		TTL: millisecond(q.TTL), DedupWindow: millisecond(q.DedupWindow), DedupIDs: q.DedupIDs, MaxJobs: q.MaxJobs, MaxBytes: q.MaxBytes,
		Retry: queue.Retry{
			MaxAttempts: q.Retry.MaxAttempts, Backoff: millisecond(q.Retry.Backoff), MaxBackoff: millisecond(q.Retry.MaxBackoff),
			Factor: q.Retry.Factor, Jitter: q.Retry.Jitter, Back: q.Retry.Back,
		},
		Layout: q.Layout, Resharding: queue.Resharding(q.Resharding),
	}
}

// Declare creates a queue, or changes the settings of an existing one; declaring the same again
// changes nothing. It returns the settings with the queue's incarnation. Shards that are being
// served follow within half a minute. If a queue of this name was removed a moment ago, Declare waits until no broker
// accepts calls for that one any more, 5 s at most; if ctx ends before, it returns Unavailable.
func (r *Registry) Declare(ctx context.Context, set queue.Settings) (queue.Settings, error) {
	if err := checkSettings(&set); err != nil {
		return queue.Settings{}, err
	}
	return r.Amend(ctx, set.Name, func(queue.Settings) (queue.Settings, error) { return set, nil })
}

// Amend is Declare with settings that revise derives from the current ones. For a queue that does
// not exist, revise gets settings with only its name. The change is atomic: if another declaration
// came first, revise is called again. If revise returns an error, Amend returns it and changes
// nothing.
func (r *Registry) Amend(ctx context.Context, name string, revise func(queue.Settings) (queue.Settings, error)) (queue.Settings, error) {
	if err := checkName(name); err != nil {
		return queue.Settings{}, err
	}
	var made queue.Settings
	for {
		wait, err := r.amend(ctx, name, revise, &made)
		if err != nil {
			return queue.Settings{}, err
		}
		if wait == 0 {
			break
		}
		if err := awaitForgotten(ctx, name, wait); err != nil {
			return queue.Settings{}, err
		}
	}
	if r.onChange != nil {
		r.onChange(made)
	}
	return made, nil
}

// amend is one attempt of Amend. It changes nothing and returns how long to wait if a queue of this name was removed a
// moment ago.
func (r *Registry) amend(ctx context.Context, name string, revise func(queue.Settings) (queue.Settings, error), made *queue.Settings) (wait time.Duration, err error) {
	err = r.change(ctx, func(f *registryFile) (bool, error) {
		at := slices.IndexFunc(f.Queues, func(q registryQueue) bool { return q.Name == name })
		now := queue.Settings{Name: name}
		if at >= 0 {
			now = f.Queues[at].settings()
		}
		set, err := revise(now)
		if err != nil {
			return false, err
		}
		if err := checkSettings(&set); err != nil {
			return false, err
		}
		*made = set
		made.Name, made.Layout, made.Resharding = name, now.Layout, now.Resharding
		if at < 0 {
			if wait = r.untilForgotten(f, name); wait > 0 {
				return false, nil
			}
			if err := f.checkShards(name, max(1, made.Shards), r.maxShards); err != nil {
				return false, err
			}
			f.Next++
			made.Incarnation = f.Next
			f.Queues = append(f.Queues, storedForm(*made))
			slices.SortFunc(f.Queues, func(a, b registryQueue) int { return cmp.Compare(a.Name, b.Name) })
			return true, nil
		}
		old := f.Queues[at]
		made.Incarnation, made.Shards = old.Incarnation, cmp.Or(set.Shards, old.Shards)
		if made.Shards != old.Shards {
			return false, queue.Refuse(queue.BadRequest, "queue %q has %d shards: a declaration does not change their number", name, old.Shards).
				WithHint("emitd queue reshard %s --shards %d changes it", name, set.Shards)
		}
		if old == storedForm(*made) {
			return false, nil
		}
		f.Queues[at] = storedForm(*made)
		return true, nil
	})
	return wait, err
}

// List returns the queues, sorted by name.
func (r *Registry) List(ctx context.Context) ([]queue.Settings, error) {
	if err := r.lock(ctx); err != nil {
		return nil, err
	}
	defer r.unlock()
	if err := r.refresh(ctx); err != nil {
		return nil, err
	}
	out := make([]queue.Settings, len(r.list.Queues))
	for i, q := range r.list.Queues {
		out[i] = q.settings()
	}
	return out, nil
}

// Remove takes a queue off the list. Its brokers accept calls for at most 5 s more, and stop serving it within a minute. Its
// objects are deleted after that, by the broker of any queue.
func (r *Registry) Remove(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	err := r.change(ctx, func(f *registryFile) (bool, error) {
		at := slices.IndexFunc(f.Queues, func(q registryQueue) bool { return q.Name == name })
		if at < 0 {
			return false, noQueue(name)
		}
		q := f.Queues[at]
		f.Queues = slices.Delete(f.Queues, at, at+1)
		f.Removed = append(slices.Clone(f.Removed), removedQueue{q.Name, q.Incarnation, q.Shards})
		if other := q.Resharding; other.Stage != "" {
			f.Removed = append(f.Removed, removedQueue{q.Name, other.Incarnation, other.Shards})
		}
		return true, nil
	})
	if err == nil && r.onChange != nil {
		r.onChange(queue.Settings{Name: name})
	}
	return err
}

// lock takes the mutex. It is held during requests to the bucket, so waiting for it ends with ctx.
func (r *Registry) lock(ctx context.Context) error {
	select {
	case r.mu <- struct{}{}:
		if p := r.reading.Load(); p != nil && p.version != "" && p.version == r.version && p.readAt.After(r.readAt) {
			r.readAt = p.readAt
		}
		return nil
	case <-ctx.Done():
		return canceled(ctx, queue.Unavailable)
	}
}

func (r *Registry) unlock() {
	r.publish()
	<-r.mu
}

func noQueue(name string) *queue.Error {
	return queue.Refuse(queue.QueueNotFound, "there is no queue %q", name).WithHint("declare it first")
}

// get returns a queue's settings with defaults, from a list that is at most age old.
func (r *Registry) get(ctx context.Context, name string, age time.Duration) (*queue.Settings, error) {
	called := time.Now()
	if err := r.lock(ctx); err != nil {
		return nil, err
	}
	defer r.unlock()
	if err := r.refreshIfOlder(ctx, called, age); err != nil {
		return nil, err
	}
	if set := r.find(name); set != nil {
		return set, nil
	}
	return nil, noQueue(name)
}

// recentSettings returns a queue's settings if they were read within followEvery. The queue may have
// been removed since. That is safe: a removed queue stays on the list of removed ones until no object
// of it was found for strikeOffAfter. So objects that are written meanwhile are found and deleted.
func (r *Registry) recentSettings(ctx context.Context, name string) *queue.Settings {
	if err := r.lock(ctx); err != nil {
		return nil
	}
	defer r.unlock()
	if r.readAt.IsZero() || time.Since(r.readAt) >= followEvery {
		return nil
	}
	return r.find(name)
}

// all returns the settings of all queues by name, with defaults, from a list that is at most age
// old.
func (r *Registry) all(ctx context.Context, age time.Duration) (map[string]*queue.Settings, error) {
	called := time.Now()
	if err := r.lock(ctx); err != nil {
		return nil, err
	}
	defer r.unlock()
	if err := r.refreshIfOlder(ctx, called, age); err != nil {
		return nil, err
	}
	out := make(map[string]*queue.Settings, len(r.list.Queues))
	for _, q := range r.list.Queues {
		set := withDefaults(q.settings())
		out[q.Name] = &set
	}
	return out, nil
}

// refreshIfOlder reads the list unless it was read within age, or since the caller's call began: callers that
// wait for each other share a read. Thousands of shards that are taken over at once would otherwise read it
// one after the other. The caller holds the lock.
func (r *Registry) refreshIfOlder(ctx context.Context, called time.Time, age time.Duration) error {
	if !r.readAt.IsZero() && (since(r.readAt) < age || r.readAt.After(called)) {
		return nil
	}
	return r.refresh(ctx)
}

// find returns a queue's settings with defaults; nil if it is not on the list. The caller holds the
// lock.
func (r *Registry) find(name string) *queue.Settings {
	q := findQueue(r.list.Queues, name)
	if q == nil {
		return nil
	}
	set := withDefaults(q.settings())
	return &set
}

var errNewerList = errors.New("the list of queues was written by a newer version")

func parseRegistry(data []byte) (*registryFile, error) {
	var f registryFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, queue.Refuse(queue.Damaged, "the list of queues is corrupt: %w", err)
	}
	if f.Format != registryFormat && f.Format != reshardingFormat {
		return nil, queue.Refuse(queue.Unavailable, "%w: it has format %d, this version knows %d", errNewerList, f.Format, reshardingFormat).
			WithHint("run the newest version on all nodes")
	}
	for _, q := range f.Queues {
		set := q.settings()
		if err := checkSettings(&set); err != nil {
			return nil, queue.Refuse(queue.Damaged, "the list of queues is corrupt at %.80q: %w", q.Name, err)
		}
		if q.Shards < 1 || q.Incarnation == 0 || q.Incarnation > f.Next {
			return nil, queue.Refuse(queue.Damaged, "the list of queues is corrupt at %.80q: %d shards, incarnation %d of %d", q.Name, q.Shards, q.Incarnation, f.Next)
		}
		if x := q.Resharding; x.Stage != "" && (x.Shards < 1 || x.Shards > maxShards || x.Incarnation == 0 || x.Incarnation > f.Next) {
			return nil, queue.Refuse(queue.Damaged, "the list of queues is corrupt at %.80q: resharding to %d shards, incarnation %d of %d", q.Name, x.Shards, x.Incarnation, f.Next)
		}
	}
	slices.SortFunc(f.Queues, func(a, b registryQueue) int { return cmp.Compare(a.Name, b.Name) })
	f.Queues = slices.Clone(f.Queues) // without the room that the decoder has left
	for _, g := range f.Removed {
		if checkName(g.Name) != nil || g.Shards < 1 || g.Shards > maxShards || g.Incarnation == 0 {
			return nil, queue.Refuse(queue.Damaged, "the list of queues is corrupt at the removed queue %.80q", g.Name)
		}
	}
	return &f, nil
}

const registryTries = 10

// change replaces the list by the one that f makes of it. If others change it at the same time, it
// reads the list and calls f again, registryTries times at most.
func (r *Registry) change(ctx context.Context, f func(*registryFile) (bool, error)) error {
	if err := r.lock(ctx); err != nil {
		return err
	}
	defer r.unlock()
	for range registryTries {
		if err := r.refresh(ctx); err != nil {
			return err
		}
		if r.damage != nil { // the change would be based on a list that may be too old
			return r.damage
		}
		next := r.list
		next.Queues = slices.Clone(next.Queues)
		changed, err := f(&next)
		if err != nil || !changed {
			return err
		}
		next.Format, next.Nonce, next.Serial = next.format(), nonceText(), next.Serial+1
		done, err := r.write(ctx, &next)
		if err != nil {
			return err
		}
		if done {
			r.publish() // the list is stored: calls need not wait for the copy
			return r.writeCopy(ctx)
		}
	}
	return queue.Refuse(queue.Unavailable, "the list of queues was changed by others %d times in a row", registryTries)
}

// write writes the list and reports whether it is now the stored one; if not, another process
// changed it first. After an unknown outcome it reads the list again and compares the nonce.
func (r *Registry) write(ctx context.Context, next *registryFile) (bool, error) {
	data, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return false, queue.Refuse(queue.Unavailable, "encode the list of queues: %w", err)
	}
	var version blob.Version
	if r.version == "" {
		version, err = r.bucket.Create(ctx, r.key, data)
	} else {
		version, err = r.bucket.Replace(ctx, r.key, data, r.version)
	}
	switch {
	case err == nil:
		r.version, r.list = version, *next
		return true, nil
	case errors.Is(err, blob.ErrUnknownOutcome):
		if r.refresh(ctx) == nil && r.list.Nonce == next.Nonce {
			return true, nil
		}
		return false, queue.Refuse(queue.UnknownOutcome, "write the list of queues: %w", err).WithHint("repeat the call")
	case errors.Is(err, blob.ErrChanged), errors.Is(err, blob.ErrExists):
		return false, nil
	}
	return false, queue.Refuse(queue.Unavailable, "write the list of queues: %w", err)
}

func nonceText() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// registryAge is how old the list may be when it tells how many shards a queue has. A broker refuses a call
// that was made for another number; the caller then calls Invalidate.
const (
	registryAge      = 30 * time.Second
	invalidatedAge   = 100 * time.Millisecond
	reshardingMaxAge = time.Second
)

// Invalidate makes the next call of Shards read the list, unless it was read within a tenth of a second.
func (r *Registry) Invalidate() { r.doubt.Store(true) }

// Shards returns how many shards a queue has, or QueueNotFound. While the list cannot be read, it is the number in the last
// one that was.
func (r *Registry) Shards(ctx context.Context, name string) (int, error) {
	age := registryAge
	if r.doubt.Swap(false) {
		age = invalidatedAge
	}
	last, err := r.known(ctx, age)
	if err == nil {
		if q := findQueue(last.queues, name); q != nil && q.Resharding.Stage != "" {
			last, err = r.known(ctx, reshardingMaxAge)
		}
	}
	if err != nil {
		return 0, err
	}
	if q := findQueue(last.queues, name); q != nil {
		return q.Shards, nil
	}
	if last, err = r.recent(ctx, 0); err != nil {
		return 0, err
	}
	if q := findQueue(last.queues, name); q != nil {
		return q.Shards, nil
	}
	return 0, noQueue(name)
}

// Layout returns how often a queue's number of shards has changed, or QueueNotFound. While the list cannot be read, it is
// what the last one says that was.
func (r *Registry) Layout(ctx context.Context, name string) (uint64, error) {
	last, err := r.known(ctx, registryAge)
	if err != nil {
		return 0, err
	}
	if q := findQueue(last.queues, name); q != nil {
		return q.Layout, nil
	}
	return 0, noQueue(name)
}

// ShardOfJob returns the shard of a job that has an ID or a key, in a queue with this many shards.
func (*Registry) ShardOfJob(j *queue.Job, shards int) int {
	id, _ := jobID(j) // an invalid ID is refused by every shard
	return shardOf(cmp.Or(j.Group, id), shards)
}

// ShardOfSettlement returns the shard of a claim: the one that its token names, or else that of its
// job's ID.
func (*Registry) ShardOfSettlement(x *queue.Settlement, shards int) int {
	return shardOfClaim(x, shards)
}
