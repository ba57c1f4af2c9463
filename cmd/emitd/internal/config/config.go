// Package config builds emitd's configuration from four layers and records where each value came from.
//
//	default (of the profile)  <  file (YAML)  <  EMITD_* variables  <  flags
//
// Each setting has one name. The YAML path coordinator.lease_duration is also the variable
// EMITD_COORDINATOR_LEASE_DURATION and the flag --coordinator.lease-duration. A variable with the suffix
// _FILE names a file that holds the value, for secrets. An empty variable counts as not set.
//
// Nothing is ignored. An unknown key or EMITD_* variable, a value of the wrong type and durations that
// contradict each other are faults. Each fault names the place that the value came from and, if there is
// a similar name, a suggestion. All faults are reported at once.
//
// Loading reads only the file and the secret files. It opens no store and resolves no name. Secrets
// (passwords in URLs, the environment of exec daemons, the credentials and signing keys of sinks) are
// kept for use. They never appear in faults or in the result of [Loaded.Settings].
package config

import (
	"cmp"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/queue/broker"
)

// Config holds every setting. The tags of its fields hold the key, the help text and the allowed words.
type Config struct {
	Cluster   string `key:"cluster" help:"name of the cluster, for people, logs and metrics"`
	Profile   string `key:"profile" words:"default,fast" help:"set of default durations: default replaces a dead leader after 60 s, fast after 5 s at 15 times the statements"`
	Listen    string `key:"listen" help:"host:port of the one HTTP listener (health, metrics, the queue's API); port 0 takes a free one"`
	Advertise string `key:"advertise" help:"host:port under which other nodes reach this listener; by default the listener's own address or, where it listens on all, the one from which this host reaches the store"`
	Insecure  bool   `key:"insecure" help:"accept a listener that is not loopback without TLS and tokens"`

	Node        nodeKeys        `key:"node"`
	Store       storeKeys       `key:"store"`
	Objects     objectsKeys     `key:"objects"`
	Coordinator coordinatorKeys `key:"coordinator"`
	Daemons     daemonsKeys     `key:"daemons"`
	Queue       queueKeys       `key:"queue"`
	Outbox      outboxKeys      `key:"outbox"`
	API         API             `key:"api"`
	Telemetry   telemetryKeys   `key:"telemetry"`
}

// nodeKeys holds the name of this node and what it offers.
type nodeKeys struct {
	Name      string            `key:"name" help:"name for people; the host name by default"`
	ID        string            `key:"id" help:"UUID of the member; empty draws one per process, which is what most want"`
	NeverLead bool              `key:"never_lead" help:"never stand for election"`
	NoDaemons bool              `key:"no_daemons" help:"take no daemons; may still lead"`
	Capacity  int               `key:"capacity" help:"load is weight divided by capacity"`
	Labels    map[string]string `key:"labels" help:"what daemons may require and spread over, such as zone=eu-1a"`
}

// storeKeys names the cluster store.
type storeKeys struct {
	URL    string `key:"url" secret:"url" help:"sqlite:///absolute/path.db, postgres://user@host:port/database, or an object store: file:///absolute/dir, s3://bucket/prefix, gs://bucket/prefix"`
	Schema string `key:"schema" help:"Postgres schema that holds the tables"`
	Prefix string `key:"prefix" help:"prefix of the table names; SQLite's default is emitd_"`
	Notify string `key:"notify" words:"auto,poll" help:"auto uses the store's wake-ups; poll only heartbeats, for transaction poolers that drop LISTEN"`

	Wait bool `key:"wait" help:"a node that starts waits for a store that is away: down, starting, cut off or locked; false: it ends at once. What somebody has to correct (a password, a schema, a name) ends it in either case"`

	MaxConnections int `key:"max_connections" help:"how many connections a process may have to a store in Postgres, and one more for wake-ups; calls wait while all are busy. At least 4, so that a heartbeat passes when others are blocked"`
}

// objectsKeys names the object store and limits the requests of this process to it; 0 is no limit.
type objectsKeys struct {
	URL string `key:"url" secret:"url" help:"object store of the queues: file:///absolute/dir, s3://bucket/prefix?region=…, gs://bucket/prefix or mem://; empty: this node serves no queues"`

	ReadsPerMinute   int `key:"reads_per_minute" help:"how many reads this process makes of the object store of the queues; more wait for their turn; 0: any number"`
	WritesPerMinute  int `key:"writes_per_minute" help:"the same for writes: queue.min_gap is what makes them fewer, this is the bound"`
	ListsPerMinute   int `key:"lists_per_minute" help:"the same for listings"`
	DeletesPerMinute int `key:"deletes_per_minute" help:"the same for deletions"`
	WritesPerDay     int `key:"writes_per_day" help:"budget of writes and deletions in 24 hours from the first one on; beyond it they fail until the next day, and queues take and hand out nothing; 0: any number"`
}

// coordinatorKeys holds the durations of heartbeat and election.
type coordinatorKeys struct {
	HeartbeatInterval   Duration `key:"heartbeat_interval" help:"how often a node writes its row"`
	QueryTimeout        Duration `key:"query_timeout" help:"bound of every call of the store"`
	LeaseDuration       Duration `key:"lease_duration" help:"how long a leader keeps its term unrenewed: the gap after a crash"`
	NodeRegistrationTTL Duration `key:"node_registration_ttl" help:"how long a silent node keeps its units"`
	SettleWindow        Duration `key:"settle_window" help:"how long the first leader of an idle cluster waits for nodes to arrive"`
	LeaderStopTimeout   Duration `key:"leader_stop_timeout" help:"how long leader-only work has to return at a clean stop"`
}

// daemonsKeys holds the durations of assignments, and which daemons run.
type daemonsKeys struct {
	AcknowledgeTimeout Duration `key:"acknowledge_timeout" help:"how long a node has to start an assigned unit"`
	DrainTimeout       Duration `key:"drain_timeout" help:"how long a revoked unit has to finish"`
	StopTimeout        Duration `key:"stop_timeout" help:"how long an agent has to return once its context is cancelled"`
	Disabled           []string `key:"disabled" help:"ids of daemons this node does not run"`
	Exec               []Exec   `key:"exec" help:"external commands run as daemons"`
}

// Exec is an external command as a daemon.
type Exec struct {
	ID                 string            `key:"id" help:"of the daemon, such as acme:reports"`
	Command            []string          `key:"command" help:"program and arguments; no shell unless named"`
	Revision           int               `key:"revision" help:"ranks entries of one id that nodes have differently: the highest counts; of equal ones, that of the process that registered last. Raise it with each change if old and new nodes may start in any order"`
	Instances          int               `key:"instances" help:"number of units"`
	Weight             int               `key:"weight" help:"what one unit adds to a node's load"`
	Dir                string            `key:"dir" help:"working directory; emitd's own by default"`
	Env                map[string]string `key:"env" secret:"all" help:"variables the command gets; besides, it has PATH, HOME, USER, LOGNAME, SHELL, LANG, LANGUAGE, LC_*, TZ, TMPDIR and TERM as emitd has them, and EMITD_DAEMON, EMITD_UNIT, EMITD_GENERATION, EMITD_TERM and EMITD_NODE"`
	InheritEnv         []string          `key:"inherit_env" help:"what else of emitd's own environment the command gets: names, or beginnings of names with a * behind, such as PROXY_*"`
	User               string            `key:"user" help:"name or number of the user whose rights the command has; emitd's own by default. Only root may give others"`
	Group              string            `key:"group" help:"name or number of its group; that of user by default"`
	Requires           map[string]string `key:"requires" help:"labels a node must have"`
	Spread             string            `key:"spread" help:"label to spread units over; zone by default"`
	AcknowledgeTimeout Duration          `key:"acknowledge_timeout" help:"overrides daemons.acknowledge_timeout"`
	DrainTimeout       Duration          `key:"drain_timeout" help:"overrides daemons.drain_timeout"`
	StallTimeout       Duration          `key:"stall_timeout" help:"a run without a line of output for so long has failed; 0s never"`
	MaxFailures        int               `key:"max_failures" help:"failures in a row before the node gives the unit back; -1 never"`
	OnAbandoned        string            `key:"on_abandoned" words:"exit" help:"exit ends the node when a command could not be ended; nothing goes on"`
}

// queueKeys holds the defaults of queues.
type queueKeys struct {
	MinGap            string   `key:"min_gap" help:"least time between two commits of a queue: auto keeps 2 to 5 ms under load, 250ms costs fewer requests"`
	Claims            string   `key:"claims" words:"soft,durable" help:"soft or durable claims"`
	VisibilityTimeout Duration `key:"visibility_timeout" help:"how long a claimed job stays hidden"`
	DedupWindow       Duration `key:"dedup_window" help:"how long a submitted id is remembered"`
	MaxShards         int      `key:"max_shards" help:"how many shards all queues of the cluster may have together; what would be beyond cannot be declared. Give all nodes the same"`
}

// outboxKeys names the database of the transactional outbox and lists its subscriptions.
type outboxKeys struct {
	URL            string         `key:"url" secret:"url" help:"database of the outbox, which is that of the applications that publish: sqlite:///absolute/path.db or postgres://user@host:port/database; store.url by default, if that is one"`
	Schema         string         `key:"schema" help:"Postgres schema that holds the outbox's tables; store.schema by default"`
	Prefix         string         `key:"prefix" help:"prefix of the outbox's table names; store.prefix by default"`
	MaxConnections int            `key:"max_connections" help:"how many connections a process may have to an outbox in Postgres, and one more for wake-ups; calls wait while all are busy. A relay uses two while it is busy"`
	Retention      Duration       `key:"retention" help:"how long delivered messages stay for a replay; 0s: until they are delivered"`
	MaxRetained    int            `key:"max_retained" help:"bytes that the log may take before on_lag decides about subscriptions that hold its beginning; 0: any"`
	OnLag          string         `key:"on_lag" words:"keep,forget" help:"keep only warns of such a subscription; forget moves it behind the oldest messages that it has not delivered, as many as must go"`
	Subscriptions  []Subscription `key:"subscriptions" help:"who reads the outbox and delivers where; each is a daemon emit:outbox/<name>"`
}

// Subscription is a subscription of the outbox.
type Subscription struct {
	Name           string    `key:"name" help:"of the subscription: lower-case letters, digits and ._:/-; its daemon is emit:outbox/<name>"`
	Topics         []string  `key:"topics" help:"topics to deliver, or beginnings that end in *; all by default, the others are passed over"`
	Sink           *Sink     `key:"sink" help:"where to: {kind: webhook, url: …} with the settings of docs/how-to/outbox-sinks.md, or a kind or URL alone"`
	Instances      int       `key:"instances" help:"units that share the 64 shards, on nodes of their own if there are enough; 1 by default"`
	Start          string    `key:"start" words:"oldest,newest" help:"where a subscription that is new begins: oldest (the default) with what is in the log, newest behind it"`
	Policy         string    `key:"policy" words:"hold,skip,drop" help:"what follows a message that cannot be delivered: hold (the default) its key waits for an operator, skip it is kept as a dead letter, drop it is gone"`
	Retry          retryKeys `key:"retry"`
	DeliverTimeout Duration  `key:"deliver_timeout" help:"bound of one call of the sink; 30s by default"`
	Patience       Duration  `key:"patience" help:"how long other keys wait for a call of the sink that hangs; a third of deliver_timeout by default"`
	Parallel       int       `key:"parallel" help:"calls of the sink at once, for different keys; 4 by default"`
	PageRows       int       `key:"page_rows" help:"messages that are read at once; 1000 by default"`
}

// retryKeys holds the back-off of a parked key.
type retryKeys struct {
	MaxAttempts int      `key:"max_attempts" help:"attempts before the policy decides; 10 by default, -1: for ever"`
	Backoff     Duration `key:"backoff" help:"pause after the first failure, doubled after each; 1s by default"`
	MaxBackoff  Duration `key:"max_backoff" help:"longest pause; 5m by default"`
}

// Sink is the destination of a subscription.
type Sink struct {
	Kind     string
	Settings any // pointer to the Config of the kind's package
}

// API secures the listener.
type API struct {
	TokensFile string   `key:"tokens_file" help:"file with one bearer token a line; with it everything but the health endpoints wants one"`
	Origins    []string `key:"origins" help:"web origins whose pages may call the API, such as https://queue.example.org; none but its own by default"`
	TLS        TLS      `key:"tls"`

	MaxConnections int `key:"max_connections" help:"how many connections the listener has at once, and calls that it answers; new ones take the place of idle ones, or else of the address that has most; 0: one for each 256 KiB of the cgroup's memory, 10000 at most and without a limit of memory"`
	MaxInFlight    int `key:"max_in_flight" help:"bytes of bodies that are being read and of payloads on their way to clients, each of which costs up to four bytes of memory; more is answered 429; 0: an eighth of the cgroup's memory, 256 MiB at most and without a limit of memory"`
}

// TLS holds the listener's certificate, and how other nodes are called.
type TLS struct {
	Cert string `key:"cert" help:"PEM file of the certificate chain"`
	Key  string `key:"key" help:"PEM file of the private key"`

	CA         string `key:"ca" help:"PEM file of the authorities of the nodes' certificates, for calls to other nodes and of emitd queue and doctor; the system's by default"`
	ClientCA   string `key:"client_ca" help:"PEM file of authorities: callers must have a certificate of one of them, beside their token (mTLS); health endpoints need none"`
	ClientCert string `key:"client_cert" help:"PEM file of the certificate that nodes are called with; cert and key by default"`
	ClientKey  string `key:"client_key" help:"PEM file of its private key"`
	ServerName string `key:"server_name" help:"name that the certificates of other nodes have; by default the host that is called"`
}

// telemetryKeys configures the log. OTEL_* variables are honoured unchanged.
type telemetryKeys struct {
	Log logKeys `key:"log"`
}

// logKeys configures the program's own log, on standard error.
type logKeys struct {
	Level  string `key:"level" words:"debug,info,warn,error" help:"least level that is written"`
	Format string `key:"format" words:"auto,text,json" help:"auto is text on a terminal and json otherwise"`
}

// Duration is a time.Duration that is written with its unit: 15s, 1m30s, 250ms.
type Duration time.Duration

// String formats d in the form in which it is parsed.
func (d Duration) String() string { return time.Duration(d).String() }

// Defaults returns the settings of a profile. An unknown profile gets those of default.
func Defaults(profile string) Config {
	t := profileTiming(profile)
	return Config{
		Cluster: "default", Profile: cmp.Or(profile, "default"), Listen: "127.0.0.1:7070",
		Node:  nodeKeys{Capacity: 1},
		Store: storeKeys{Schema: "emitd", Notify: "auto", Wait: true, MaxConnections: minConnections},
		Coordinator: coordinatorKeys{
			HeartbeatInterval: Duration(t.HeartbeatInterval), QueryTimeout: Duration(t.QueryTimeout),
			LeaseDuration: Duration(t.LeaseDuration), NodeRegistrationTTL: Duration(t.NodeRegistrationTTL),
			SettleWindow: Duration(t.SettleWindow), LeaderStopTimeout: Duration(t.LeaderStopTimeout),
		},
		Daemons: daemonsKeys{
			AcknowledgeTimeout: Duration(t.AcknowledgeTimeout), DrainTimeout: Duration(t.DrainTimeout),
			StopTimeout: Duration(t.StopTimeout),
		},
		Queue: queueKeys{
			MinGap: "auto", Claims: "soft",
			VisibilityTimeout: Duration(30 * time.Second), DedupWindow: Duration(10 * time.Minute), MaxShards: broker.DefaultMaxShards,
		},
		Outbox:    outboxKeys{MaxConnections: 8, Retention: Duration(24 * time.Hour), OnLag: "keep"},
		Telemetry: telemetryKeys{Log: logKeys{Level: "info", Format: "auto"}},
	}
}

// minConnections is the minimum, and the default, of store.max_connections.
const minConnections = 4

func profileTiming(profile string) lease.Timing {
	if profile == "fast" {
		return lease.Fast()
	}
	return lease.Default()
}

// Timing returns the protocol's durations. The margins are those of the profile.
func (c Config) Timing() lease.Timing {
	t := profileTiming(c.Profile)
	t.HeartbeatInterval = time.Duration(c.Coordinator.HeartbeatInterval)
	t.QueryTimeout = time.Duration(c.Coordinator.QueryTimeout)
	t.LeaseDuration = time.Duration(c.Coordinator.LeaseDuration)
	t.NodeRegistrationTTL = time.Duration(c.Coordinator.NodeRegistrationTTL)
	t.SettleWindow = time.Duration(c.Coordinator.SettleWindow)
	t.LeaderStopTimeout = time.Duration(c.Coordinator.LeaderStopTimeout)
	t.AcknowledgeTimeout = time.Duration(c.Daemons.AcknowledgeTimeout)
	t.DrainTimeout = time.Duration(c.Daemons.DrainTimeout)
	t.StopTimeout = time.Duration(c.Daemons.StopTimeout)
	return t
}

// MinGap returns queue.min_gap; 0 means auto.
func (c Config) MinGap() time.Duration {
	d, _ := time.ParseDuration(c.Queue.MinGap) // has been validated
	return d
}

// HasOutbox reports whether an outbox is configured for this node.
func (c Config) HasOutbox() bool { return c.Outbox.URL != "" || len(c.Outbox.Subscriptions) > 0 }

// OutboxURL returns the URL of the outbox's database, or "" if none is configured.
func (c Config) OutboxURL() string {
	if c.Outbox.URL == "" && isSQL(c.Store.URL) {
		return c.Store.URL
	}
	return c.Outbox.URL
}

// OutboxSchema returns the outbox's Postgres schema and the prefix of its tables.
func (c Config) OutboxSchema() (schema, prefix string) {
	return cmp.Or(c.Outbox.Schema, c.Store.Schema), cmp.Or(c.Outbox.Prefix, c.Store.Prefix)
}

// Relay returns the subscription as an outbox.Config. The caller sets log, sink and hooks.
func (s Subscription) Relay() outbox.Config {
	return outbox.Config{
		Name: s.Name, Topics: s.Topics, Instances: s.Instances, Newest: s.Start == "newest", Policy: outbox.Policy(s.Policy),
		Retry: outbox.Retry{
			MaxAttempts: s.Retry.MaxAttempts, Backoff: time.Duration(s.Retry.Backoff), MaxBackoff: time.Duration(s.Retry.MaxBackoff),
		},
		DeliverTimeout: time.Duration(s.DeliverTimeout), Patience: time.Duration(s.Patience), Parallel: s.Parallel, PageRows: s.PageRows,
	}
}

// Spec returns the specification of the exec daemon.
func (e Exec) Spec() daemon.Spec {
	return daemon.Spec{
		ID: daemon.ID(e.ID), Revision: int64(e.Revision), Instances: e.Instances, Weight: e.Weight,
		Requires: e.Requires, Spread: e.Spread,
		AcknowledgeTimeout: time.Duration(e.AcknowledgeTimeout),
		DrainTimeout:       time.Duration(e.DrainTimeout),
		StallTimeout:       time.Duration(e.StallTimeout),
		MaxFailures:        e.MaxFailures, OnAbandoned: e.OnAbandoned,
	}
}
