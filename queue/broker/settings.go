package broker

import (
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// shardSettings is the settings of the queue as one shard has them. The shard's goroutine owns it,
// except next.
type shardSettings struct {
	*queue.Settings                                // in force; shared with the list that callers use, and never changed
	next            atomic.Pointer[queue.Settings] // newer ones that were not read yet; nil: none
	recording       *batch                         // the batch with a Configure record that is not durable yet
	removed         bool                           // the queue was removed
}

// replaceSettings passes settings to the shard's goroutine. They replace settings that it has not read yet.
// Any goroutine may call it.
func (s *shard) replaceSettings(set *queue.Settings) {
	s.settings.next.Store(set)
	signal(s.wake)
}

// apply puts new settings into force. It returns false if they are another queue's: this one was
// removed, and perhaps declared again.
func (f *shardSettings) apply(next *queue.Settings) bool {
	if next.Incarnation != f.Incarnation {
		f.removed = true
		return false
	}
	f.Settings = next
	return true
}

// applied notes that a batch is durable.
func (f *shardSettings) applied(b *batch) {
	if f.recording == b {
		f.recording = nil
	}
}

// configure puts new settings into force. Settings that the ledger's replay depends on become a
// record in the log, so that every replay sees them at the same place.
func (s *shard) configure(next *queue.Settings) {
	if s.handOver.isDraining() {
		return
	}
	if !s.settings.apply(next) {
		s.handOver.prepare(time.Now())
		return
	}
	if next.Resharding.Stage == queue.Moving {
		s.handOver.sealing = true
		s.handOver.prepare(time.Now())
		return
	}
	s.b.addShard(s)
	if c := ledgerConfig(next); c != s.ledger.Config() && s.settings.recording == nil && !s.commits.blocked {
		s.readClock()
		s.commits.record(nil, &ledger.Record{Kind: ledger.Configure, Config: c})
		s.settings.recording = s.commits.gathering
		s.commits.appendBatch(false)
	}
}
