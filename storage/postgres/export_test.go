package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// fake replaces the server's clock and identity by SQL expressions.
func fake(clock, id string) *strings.Replacer {
	return strings.NewReplacer("clock_timestamp()", clock, "(pg_control_system()).system_identifier", id, serverStarted, id)
}

// FakeServer makes a store use SQL expressions instead of the server's clock and identity. The
// functions belong to the schema: see [FakeFunctions].
func (s *Store) FakeServer(clock, id string) {
	for name, text := range s.sql {
		s.sql[name] = fake(clock, id).Replace(text)
	}
}

// FakeFunctions are the definitions of the functions heartbeat_8 and register_8 that use the expressions.
func FakeFunctions(cfg Config, clock, id string) string {
	n := cfg.names()
	return fake(clock, id).Replace(n.include("heartbeat_8") + ";" + n.include("register_8"))
}

// ParseTime reads a timestamptz.
func ParseTime(text string) (time.Time, error) { return parseTime([]byte(text)) }

// Patient makes calls that have ended wait long for their answers, on new connections.
func (s *Store) Patient() {
	s.grace = time.Minute
	s.pool.Reset()
}

// Operations are the names of the calls of a store, in the order of their ends.
type Operations struct {
	noop.Float64Histogram
	mu    sync.Mutex
	names []string
}

// Listen makes a store tell its later calls.
func (o *Operations) Listen(s *Store) { s.instruments.duration = o }

// Enabled reports that the calls are wanted.
func (o *Operations) Enabled(context.Context) bool { return true }

// Record notes the name of a call.
func (o *Operations) Record(_ context.Context, _ float64, options ...metric.RecordOption) {
	o.mu.Lock()
	defer o.mu.Unlock()
	cfg := metric.NewRecordConfig(options)
	attributes := cfg.Attributes()
	name, _ := attributes.Value("db.operation.name")
	o.names = append(o.names, name.AsString())
}

// Take returns the names since the last call of Take.
func (o *Operations) Take() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	names := o.names
	o.names = nil
	return names
}

// Unranked returns those of the names that have no rank, so that every other call comes first.
func Unranked(names []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { _, ok := ranks[name]; return ok })
}

// LoseAnswer makes a process one whose registration was sent and not answered.
func (s *Store) LoseAnswer(process node.Incarnation) { s.unanswered.Store(process, true) }

// Connections counts the connections that were ever made for calls.
func (s *Store) Connections() int64 { return s.pool.Stat().NewConnsCount() }

// CheckIdle checks whether an idle connection has broken, as the pool does before it hands one out.
// The connection has a minute of grace for calls.
func (s *Store) CheckIdle(ctx context.Context) error {
	s.grace = time.Minute
	s.pool.Reset()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	check := s.pool.Config().ShouldPing
	if check(ctx, pgxpool.ShouldPingParams{Conn: conn.Conn(), IdleDuration: time.Hour}) {
		return errors.New("the connection is said to be broken")
	}
	return nil
}

// Hopeless exports hopeless.
func Hopeless(left, total time.Duration) bool { return tooLate(left, total) }

// StampsWaiting counts the stamps that are in no batch yet.
func (s *Store) StampsWaiting() int {
	s.stamps.mu.Lock()
	defer s.stamps.mu.Unlock()
	return len(s.stamps.waiting)
}

// StampsTravel reports whether a batch of stamps is being sent.
func (s *Store) StampsTravel() bool {
	s.stamps.mu.Lock()
	defer s.stamps.mu.Unlock()
	return s.stamps.sending
}

// StampBatch stamps in one call and returns what the fences hold.
func (s *Store) StampBatch(fences ...daemon.Fence) []int64 {
	batch, held := make([]*stampRequest, len(fences)), make([]int64, len(fences))
	for i, f := range fences {
		batch[i] = &stampRequest{fence: f, done: make(chan struct{})}
	}
	s.sendBatch(batch)
	for i, w := range batch {
		if held[i] = w.held; w.err != nil {
			panic(w.err)
		}
	}
	return held
}

// ParseWake exports parseWake.
func ParseWake(payload string) storage.WakeUp { return parseWake(payload) }

// UnitsRead takes a snapshot and returns how many units it has read.
func (s *Store) UnitsRead() int {
	var units []daemon.Record
	known, loaded := s.units.Load(), s.loading.read
	err := s.call(context.Background(), "snapshot", reading, func(m *message) {
		m.query(records(&units), "units", known.revision, known.moment.oldest, known.moment.history, known.moment.seen, unitsPage+1)
	})
	if err == nil {
		_, err = s.Snapshot(context.Background())
	}
	if err != nil {
		panic(err)
	}
	return len(units) + s.loading.read - loaded
}

// ListReads counts the readings of the member list that nodes shared.
func (s *Store) ListReads() int {
	s.lists.mu.Lock()
	defer s.lists.mu.Unlock()
	return s.lists.reads
}

// LoadPage reads one page of the units, as a process that knows none does. It reports whether that was the last one.
func (s *Store) LoadPage(size int) bool {
	s.loading.size = size
	if s.loading.base == nil {
		s.loading.base = noUnits
	}
	whole, err := s.loadPage(context.Background())
	if err != nil {
		panic(err)
	}
	return whole
}

// ForgetUnits makes the store one that knows no units.
func (s *Store) ForgetUnits() { s.units.Store(nil) }

// Break makes a statement fail until mend is called.
func (s *Store) Break(statement string) (mend func()) {
	text := s.sql.get(statement)
	s.sql[statement] = "select 1/0"
	return func() { s.sql[statement] = text }
}

// ShareLists makes every heartbeat that wants a member list one of several.
func (s *Store) ShareLists() { s.lists.enter() }

// ReadElsewhere makes calls that only read say that another server has answered.
func (s *Store) ReadElsewhere() {
	single := s.sql.get("single")
	s.sql["single"] = strings.Replace(single, serverStarted,
		"case when current_setting('transaction_read_only') = 'on' then 'elsewhere' else "+serverStarted+"::text end", 1)
}

// ReadInZone makes all calls but those of the functions read the state of the store in another time zone, as a session does
// that began after the database's time zone was changed.
func (s *Store) ReadInZone(zone string) {
	s.sql["single"] = s.sql.get("single") + " where set_config('TimeZone', '" + zone + "', true) <> ''"
}

// SeenTransactions is the list of transactions that wrote the rows u.
func SeenTransactions() string { return fmt.Sprintf(seenTransactions, "u") }

// ProbeOften makes the store wait less for notifications, and probe often whether they arrive.
func (s *Store) ProbeOften() { s.arrival, s.probeAgain = 200*time.Millisecond, 50*time.Millisecond }

// Arrival is how long the notification of a probe may take.
func (s *Store) Arrival() time.Duration { return s.arrival }

// FewRows is how many outcomes are sent before the commit.
const FewRows = fewRows

// LargestAnswer is how many bytes are sent before the commit, about.
const LargestAnswer = largestAnswer

// MaxMemberEvents is how many events about members one answer has.
const MaxMemberEvents = maxMemberEvents

// MemberEvents are the events that heartbeats share.
type MemberEvents = memberEvents

// Read returns the events about members after a cursor, as a heartbeat does that reads a log up to a number and gets at most
// maxMemberEvents.
func (m *memberEvents) Read(store string, cursor, oldest, through int64, log []daemon.Event) []daemon.Event {
	known := m.after(cursor)
	read := laterThan(known.after, log)
	if len(read) >= maxMemberEvents {
		read = read[:maxMemberEvents]
		through = read[maxMemberEvents-1].Seq
	}
	m.add(store, oldest, known.after, through, read)
	return append(known.events, laterThan(cursor, read)...)
}
