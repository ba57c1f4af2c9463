package sqlite

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"maps"
	"strings"
	"time"

	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// meta is the row that identifies the file.
type meta struct {
	fileID, bootID string
	place          string // where the newest writer found the file
	// since is when this boot first found another store identity than the rows record; zero if it
	// never did.
	since     time.Time
	base      int64 // the store's clock at the boot, in nanoseconds
	latest    int64 // last stamp, on hosts without a boot id
	head      int64 // number of the newest event
	headAt    int64 // its time, in nanoseconds; 0 if it was swept
	lockFloor int64
	cluster   string // the cluster's name
}

// host is what the store needs from the machine.
type host struct {
	// bootID changes with every boot. If it is empty, it is unknown on this system, and sinceBoot
	// is nil.
	bootID string
	// sinceBoot is a clock that counts suspend, never steps, and reads the same in every process.
	sinceBoot func() time.Duration
	// wall is the wall clock.
	wall func() time.Time
}

// clock reads the store's clock.
func (s *Store) clock(m meta) time.Time {
	switch {
	case s.cfg.Now != nil:
		return moment(nanos(s.cfg.Now()))
	case s.host.sinceBoot == nil:
		return moment(max(nanos(s.host.wall()), m.latest+1))
	}
	return moment(m.base + int64(s.host.sinceBoot()))
}

// storeID is the store identity. Another file, another place or another boot is another store.
func (s *Store) storeID(c *session, m meta) string {
	return "sqlite:" + m.fileID + ":" + c.place + ":" + m.bootID
}

// checkSameStore refuses a call that was decided from another store than the one whose write lock it holds.
func (s *Store) checkSameStore(st *step, read string) error {
	if read != "" && read != s.storeID(st.c, st.meta) {
		return storage.ErrStoreChanged
	}
	return nil
}

// ensureIdentity makes the file belong to this boot and its place, unless it already does, and reads the
// clock. It runs at the beginning of every write transaction and costs nothing more if there is
// nothing to do.
//
// If the file is another store than before, it records since when. Its rows may belong to a lost
// history, and nodes that start now must learn that. After a reboot this is not needed, because no
// process of the lost history is left. But a file that another boot has written may also be a backup that was put in the
// place of the file of this boot. It is taken for one if this process has used a file before, or if it has another inode
// than it had when it was written. (The number of a device may change with a reboot.)
func (s *Store) ensureIdentity(ctx context.Context, st *step) error {
	m := &st.meta
	known, here := m.fileID != "", m.bootID == s.host.bootID
	seen, last := s.seenMarks()
	restored := st.lost(seen[m.fileID], *m)
	if st.err != nil {
		return st.err // otherwise a loss that could not be checked would count as none
	}
	moved := here && (m.place != st.c.place || exchanged(last, *m)) || !here && (len(seen) > 0 || inode(m.place) != inode(st.c.place))
	switch {
	case known && !here && !restored && st.c.adopted:
		// The file belonged to this boot when the session began, so another machine writes it now.
		return errOtherHost
	case known && here && !restored && !moved:
		st.c.adopted = true
		s.stamp(st)
		return st.err
	}
	if !known || restored {
		m.fileID = randomID() // a new file, or one that an earlier copy was restored into
	}
	m.place, m.since = st.c.place, time.Time{}
	if !known || !here {
		s.beginBoot(st)
	}
	if known && (restored || moved) {
		m.since = s.clock(*m)
	}
	st.exec(`INSERT INTO ~meta (one, file_id, place, other_since, boot_id, clock_base, latest, head, lock_floor, cluster)
		VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (one) DO UPDATE SET file_id = excluded.file_id, place = excluded.place, other_since = excluded.other_since,
			boot_id = excluded.boot_id, clock_base = excluded.clock_base, latest = excluded.latest, head = excluded.head,
			lock_floor = excluded.lock_floor, cluster = excluded.cluster`, m.fileID, m.place, nanos(m.since), m.bootID, m.base, m.latest, m.head, m.lockFloor, m.cluster)
	s.stamp(st)
	if known && !here {
		st.endPreviousBoot()
	}
	switch {
	case !known:
	case restored:
		s.cfg.Logger.WarnContext(ctx, "an earlier copy was restored into the database file: it counts as another store now", "path", s.cfg.Path)
	case moved:
		s.cfg.Logger.WarnContext(ctx, "the database file is a copy, or was moved or exchanged: it counts as another store now", "path", s.cfg.Path)
	default:
		s.cfg.Logger.WarnContext(ctx, "the host was restarted since the store was last used: all its nodes have ended", "path", s.cfg.Path)
	}
	st.c.adopted = true
	return st.err
}

// inode returns the part of a place that stays the same when the host is restarted.
func inode(place string) string {
	_, file, _ := strings.Cut(place, ".")
	return file
}

// stamp reads the clock of the step.
func (s *Store) stamp(st *step) {
	st.now = s.clock(st.meta)
	if s.host.sinceBoot == nil && s.cfg.Now == nil {
		st.meta.latest = nanos(st.now)
		st.exec(`UPDATE ~meta SET latest = ?`, st.meta.latest)
	}
}

// beginBoot sets the clock for this boot: to the wall clock, but later than every existing stamp.
func (s *Store) beginBoot(st *step) {
	m := &st.meta
	m.bootID = s.host.bootID
	st.one(`SELECT max(?, coalesce((SELECT max(last_heartbeat_at, ended_at) FROM ~node ORDER BY max(last_heartbeat_at, ended_at) DESC LIMIT 1), 0),
		coalesce((SELECT at FROM ~event ORDER BY seq DESC LIMIT 1), 0),
		coalesce((SELECT max(since) FROM ~unit), 0),
		(SELECT elected_at FROM ~term))`, []any{m.latest}, &m.latest)
	if s.host.sinceBoot != nil {
		m.base = max(nanos(s.host.wall()), m.latest+1) - int64(s.host.sinceBoot())
	}
}

// endPreviousBoot ends everything that belongs to the previous boot, because no process of it is left.
func (st *step) endPreviousBoot() {
	if st.term.Held() {
		rules.Vacate(st, &st.term, node.Expired, nil, st.now)
		st.putTerm()
	}
	for _, m := range st.members() {
		if m.Present() {
			rules.MakeTombstone(st, m, ReasonRebooted, st.now)
		}
	}
	rules.ForceFree(st, st.units(`SELECT `+unitColumns+` FROM ~unit
		WHERE state NOT IN ('unassigned', 'deleted') ORDER BY daemon, idx`), ReasonRebooted, st.now)
	st.exec(`UPDATE ~lock SET owner = '', expires_at = ? WHERE owner <> ''`, nanos(st.now))
	st.woken = true
}

// mark is the newest event of a file that this process has seen. Others may write as many events after an earlier
// copy was restored as were lost with it. So the number alone does not tell that an event is lost, but its time does: an
// event that is written later has a later one.
type mark struct {
	seq int64
	at  int64 // 0: unknown
}

// visit is a call of this process: the file's random ID, and when it was by the file's clock.
type visit struct {
	fileID string
	at     time.Time
}

// noteHead records the newest event of a file, and that a call used the file at that time.
func (s *Store) noteHead(m meta, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = visit{m.fileID, now}
	if last, known := s.seen[m.fileID]; !known || m.head >= last.seq {
		s.seen[m.fileID] = mark{m.head, m.headAt}
	}
}

// seenMarks returns the newest events that this process has seen, by file, and its last call. A read takes them before it
// begins. Otherwise an event that is committed meanwhile would look like a loss.
func (s *Store) seenMarks() (map[string]mark, visit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.seen), s.last
}

// exchanged reports whether the file has another random ID than at this process's last call, although nobody has recorded
// since then that it became another store. So an earlier copy was restored that still has the ID it had before another
// restore. It keeps that ID: the other processes then find that the change has been recorded. A change that is recorded
// while a read goes on may count twice, which does no harm: it then has the later time.
func exchanged(last visit, m meta) bool {
	return last.fileID != "" && last.fileID != m.fileID && !m.since.After(last.at)
}

// lost reports whether the file has lost an event, because an earlier copy was restored into it. An event that is missing
// in the middle of the history was swept. While nobody else writes, this needs no statement.
func (q *query) lost(seen mark, m meta) bool {
	at := m.headAt
	switch {
	case m.head < seen.seq:
		return true
	case m.head > seen.seq && seen.at != 0:
		at = 0
		q.one(timeOfEvent, []any{seen.seq}, &at)
	}
	return at != 0 && seen.at != 0 && at != seen.at
}

const timeOfEvent = `SELECT at FROM ~event WHERE seq = ?`

func randomID() string {
	var b [12]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic("sqlite: " + err.Error()) // crypto/rand does not fail
	}
	return hex.EncodeToString(b[:])
}

var (
	errReplaced  = errors.New("another file is in its place")
	errOtherHost = errors.New("another machine, or another boot of this one, has written the database file since it was opened here: one file serves the processes of one host; give each host its own store, or use Postgres")
)
