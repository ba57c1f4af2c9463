package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/internal/admin/console"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage"
)

// Config configures an API. Only Store is required.
type Config struct {
	// Store is the cluster's store. All reads and commands go there, so every node serves the whole API, and so does a
	// program that runs no node.
	Store storage.Store
	// StoreKind says for people what Store is, such as "postgres".
	StoreKind string
	// Cluster names the cluster while its store has no name yet.
	Cluster string
	// Timing counts while no node states its own timings. The zero Timing is that of the default profile.
	Timing coordinator.Timing
	// MaxMovesPerRound is that of the cluster\'s nodes, as in coordinator.Config: a negative number says that loads are not
	// made even. Plans assume it.
	MaxMovesPerRound int
	// ExpectQueues says that nodes should serve queues: if none does, the status has a notice.
	ExpectQueues bool
	// Queues are the cluster's queues; nil if the API is to show none.
	Queues Queues
	// Outbox returns the outbox, or why it cannot be used now. It is called by each call that needs it. Nil if there is none.
	Outbox func() (*Outbox, error)
	// Settings returns the settings of the program, without secrets. Nil if the API is to show none.
	Settings func() []Setting
	// Trends returns what was measured in the last hour of a queue, of a subscription of the outbox or, if both names are
	// empty, of the cluster. It may need who makes the call. Nil if the program keeps none.
	Trends func(r *http.Request, queue, subscription string) (*Trends, error)
	// Timeout bounds what one call waits for the store. The default is 10 s.
	Timeout time.Duration
	// Actor returns who makes a call, for the history of the cluster. It should return what the program's own
	// authentication has found out. If it is nil or returns "", the call itself says who makes it.
	Actor func(*http.Request) string
	// Authorize decides whether a call is allowed, before anything else is done with it. Its error refuses the call, and
	// its text is what the caller is told: 401 if it is a queue.Error with the tag queue.Unauthorized, otherwise 403.
	// It should return soon: it is called for each queue of a list, and may be called more than once. If it is nil, every
	// call is allowed.
	Authorize func(r *http.Request, need Access) error
	// Sessions lets people sign in with a token in a browser. If it is nil, the program has its own login.
	Sessions Sessions
	// Explain may replace an error of the store before it is shown and logged, for example to leave out what a caller must
	// not see.
	Explain func(error) error
	// Logger gets the calls that failed for a reason that is not the caller's. The default is slog.Default.
	Logger *slog.Logger
}

// API serves the state of a cluster, its history and operators' commands under /api/v1, and the console at "/". It is an [http.Handler] for any
// mux; use [http.StripPrefix] to have it below a prefix. It authenticates nobody: put your own authentication in front
// of it, and let Config.Authorize decide what each caller may do. Calls with the method GET change nothing; all others do. A call that changes something is refused if it comes
// from a page of another origin.
//
// The package comment has more. docs/reference/admin-api.md lists the calls, and /api/v1/openapi.json describes them.
type API struct {
	cfg    Config
	mux    *http.ServeMux
	origin *http.CrossOriginProtection
	reads  shared[*state]
	hub    hub

	leading sync.Mutex // held while led is used
	led     leadership // of leaders' reads
	leaders shared[*ledBy]

	queueReads  shared[*view.Queues]
	outboxReads shared[*view.Outbox]
}

// root is where the paths begin. The number is raised if answers change in a way that breaks a caller; fields may be
// added without that.
const root = "/api/v1"

// defaultTimeout is that of Config.Timeout.
const defaultTimeout = 10 * time.Second

// New returns the API of a cluster. It starts nothing.
func New(c Config) (*API, error) {
	if c.Store == nil {
		return nil, errors.New("admin: Config.Store is missing")
	}
	if c.Timeout < 0 {
		return nil, fmt.Errorf("admin: Config.Timeout is %v, want more than 0", c.Timeout)
	}
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	if c.Timing == (coordinator.Timing{}) {
		c.Timing = coordinator.Timing(lease.Default())
	}
	a := &API{cfg: c, mux: http.NewServeMux(), origin: http.NewCrossOriginProtection()}
	a.reads.read, a.reads.maxAge, a.hub.api = a.read, stateAge, a
	a.leaders.read, a.leaders.maxAge = a.readLeadership, stateAge
	a.queueReads.read, a.queueReads.maxAge = a.readQueues, partAge
	a.outboxReads.read, a.outboxReads.maxAge = a.readOutbox, partAge
	a.route()
	return a, nil
}

// route fills the mux. What no operation answers is refused in the format of the API.
func (a *API) route() {
	methods := map[string][]string{}
	for _, o := range operations() {
		methods[o.path] = append(methods[o.path], o.method)
		a.mux.HandleFunc(o.method+" "+root+o.path, func(w http.ResponseWriter, r *http.Request) {
			var err error
			if !o.open {
				err = a.authorize(r, o.needs(r))
			}
			if err == nil {
				err = o.serve(a, w, r)
			}
			if err != nil {
				a.refuse(w, r, err)
			}
		})
	}
	for path, allowed := range methods {
		if slices.Contains(allowed, http.MethodGet) {
			allowed = append(allowed, http.MethodHead)
		}
		allow := strings.Join(slices.Sorted(slices.Values(allowed)), ", ")
		a.mux.HandleFunc(root+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", allow)
			a.refuse(w, r, refused(http.StatusMethodNotAllowed, "%s is not a method of this path, which has %s", r.Method, allow))
		})
	}
	a.mux.Handle("GET /{$}", console.Handler())
	a.mux.Handle("GET /"+console.Directory, console.Handler())
	a.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.refuse(w, r, refused(http.StatusNotFound, "there is no %.200q", r.URL.Path))
	})
}

// ServeHTTP answers a call.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if err := a.origin.Check(r); err != nil {
		a.refuse(w, r, refused(http.StatusForbidden, "the call comes from a page of another origin"))
		return
	}
	a.mux.ServeHTTP(w, r)
}

// Close ends the streams and refuses further ones; other calls are answered as before. A server that shuts down waits for
// all calls, so give Close to its RegisterOnShutdown.
func (a *API) Close() { a.hub.end() }

// reader returns what is known about the cluster without reading it.
func (a *API) reader(all bool) view.Reader {
	return view.Reader{Cluster: a.cfg.Cluster, Store: a.cfg.StoreKind, Timing: lease.Timing(a.cfg.Timing), Queues: a.cfg.ExpectQueues, All: all}
}

// bounded returns the context of a call to the store.
func (a *API) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, a.cfg.Timeout)
}

// operations lists the calls of the API, sorted by path.
func operations() []operation {
	all := slices.Concat(clusterOperations(), historyOperations(), planOperations(), commandOperations(), keyOperations(), lockOperations(), queueOperations(), outboxOperations(), trendOperations(), settingsOperations(), sessionOperations(), []operation{streamOperation(), documentOperation()})
	slices.SortFunc(all, func(a, b operation) int { return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.method, b.method)) })
	return all
}

// refusal is a fault with the status of its answer.
type refusal struct {
	status int
	*fault.Fault
}

func (r *refusal) Unwrap() error { return r.Fault }

// refused returns the refusal of a call that cannot be understood or is not allowed.
func refused(status int, format string, args ...any) error {
	return &refusal{status, fault.New(fault.BadCall, format, args...)}
}

// badCall returns the refusal of a call with a wrong parameter.
func badCall(format string, args ...any) error {
	return refused(http.StatusBadRequest, format, args...)
}

// fault says to people what went wrong.
func (a *API) fault(err error) *fault.Fault {
	if a.cfg.Explain != nil {
		err = a.cfg.Explain(err)
	}
	return fault.From(err)
}

// problemOf returns the answer to a call that failed.
func (a *API) problemOf(err error) fault.Problem {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.Problem(r.status)
	}
	if queue.TagOf(err) == queue.Unauthorized {
		return a.fault(err).Problem(http.StatusUnauthorized)
	}
	return a.fault(err).Problem(0)
}

// refuse answers a call that failed.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if ended := revoked(r.Context()); ended != nil {
		err = ended
	} else if r.Context().Err() != nil {
		return // the caller has gone
	}
	p := a.problemOf(err)
	if p.Status >= http.StatusInternalServerError {
		a.cfg.Logger.WarnContext(r.Context(), "a call of the admin API failed", "method", r.Method, "path", r.URL.Path, "code", p.Code, "error", p.Detail)
	}
	if p.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	respond(w, p.Status, fault.ProblemType, p)
}

// respond writes an answer.
func respond(w http.ResponseWriter, status int, kind string, body any) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_ = view.JSONLine(w, body) // an error means that the caller has gone
}

// sortedKeys lists the keys of a set for a message.
func sortedKeys(set map[string]bool) string {
	return strings.Join(slices.Sorted(maps.Keys(set)), ", ")
}
