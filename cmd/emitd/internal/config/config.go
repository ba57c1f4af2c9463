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
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/queue/broker"
)

// Config holds every setting. The tags of its fields hold the key, the help text and the allowed words.
type Config struct {
	Cluster   string `key:"cluster" help:"name of the cluster, shown in output, logs and metrics; all nodes of a store use the same"`
	Profile   string `key:"profile" words:"default,fast,instant" help:"set of default durations: default replaces a dead leader after 60 s; fast after 5 s, with 15 times as many statements; instant after 1 s, with 75 times as many, and only for a store that always answers within 150 ms"`
	Listen    string `key:"listen" help:"host:port of the HTTP listener (health, metrics, the console, the admin API, the queue's API); port 0 chooses a free one"`
	Advertise string `key:"advertise" help:"host:port at which other nodes reach this listener; by default the listener's own address or, if it listens on all addresses, the one from which this host reaches the store"`
	Insecure  bool   `key:"insecure" help:"accept a listener on an address other than loopback although TLS, tokens or both are missing"`

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
	Name      string            `key:"name" help:"node name for people; the host name by default"`
	ID        string            `key:"id" help:"UUID of the node; if empty, each process generates one (recommended)"`
	Group     string            `key:"group" help:"group of nodes, such as those of one of several services on one store: commands, relays and sweepers that this node declares get @group behind their IDs, and only nodes of the group run them; empty: none"`
	NeverLead bool              `key:"never_lead" help:"never campaign for leadership"`
	NoDaemons bool              `key:"no_daemons" help:"run no daemons; the node may still lead"`
	Capacity  int               `key:"capacity" help:"relative capacity: a node's load is the weight of its units divided by its capacity"`
	MaxWeight int               `key:"max_weight" help:"most weight of units that the node is given in all; 0: no limit. Units that fit on no node wait, and are reported"`
	Labels    map[string]string `key:"labels" help:"labels that daemons may require and spread over, such as zone=eu-1a"`
}

// storeKeys names the cluster store.
type storeKeys struct {
	URL    string `key:"url" secret:"url" help:"sqlite:///absolute/path.db, postgres://user@host:port/database, or an object store: file:///absolute/dir, s3://bucket/prefix, gs://bucket/prefix"`
	Schema string `key:"schema" help:"Postgres schema that holds the tables"`
	Prefix string `key:"prefix" help:"prefix of the table names; SQLite's default is emitd_"`
	Notify string `key:"notify" words:"auto,poll" help:"auto uses the store's wake-ups, and looks for them each minute where they do not arrive; poll relies on heartbeats only, for transaction poolers that drop LISTEN"`

	Wait bool `key:"wait" help:"a starting node waits while the store cannot be reached (down, starting, cut off or locked); false: it ends at once. A mistake in a password, a schema or a name always ends it"`

	MaxConnections int `key:"max_connections" help:"most connections of a process to a store in Postgres, plus one for wake-ups; calls wait while all are busy. At least 4, so that heartbeats get through while other calls are blocked"`
}

// objectsKeys names the object store and limits the requests of this process to it; 0 is no limit.
type objectsKeys struct {
	URL string `key:"url" secret:"url" help:"object store of the queues: file:///absolute/dir, s3://bucket/prefix?region=…, gs://bucket/prefix or mem://; empty: this node serves no queues"`

	ReadsPerMinute   int `key:"reads_per_minute" help:"most reads of the queues' object store per minute by this process; further reads wait; 0: no limit"`
	WritesPerMinute  int `key:"writes_per_minute" help:"the same for writes; to reduce the number of writes use queue.write_budget or queue.min_gap"`
	ListsPerMinute   int `key:"lists_per_minute" help:"the same for listings"`
	DeletesPerMinute int `key:"deletes_per_minute" help:"the same for deletions"`
	WritesPerDay     int `key:"writes_per_day" help:"budget of writes and deletions per 24 hours, counted from the first one; beyond it they fail until the next day, and queues accept and deliver no jobs; 0: no limit"`
}

// coordinatorKeys holds the durations of heartbeat and election.
type coordinatorKeys struct {
	HeartbeatInterval   Duration `key:"heartbeat_interval" help:"how often a node writes its row"`
	QueryTimeout        Duration `key:"query_timeout" help:"longest duration of one call to the store"`
	LeaseDuration       Duration `key:"lease_duration" help:"how long a leader may act without renewing; after a crash there is no leader for this time"`
	NodeRegistrationTTL Duration `key:"node_registration_ttl" help:"how long a node without heartbeats keeps its units"`
	SettleWindow        Duration `key:"settle_window" help:"how long the membership must be stable before running units are moved to make loads even, and, if many nodes join or leave at once, before units are placed"`
	LeaderStopTimeout   Duration `key:"leader_stop_timeout" help:"how long leader-only work has to return at a clean stop"`
	MaxMovesPerRound    int      `key:"max_moves_per_round" help:"how many running units the leader moves at a time to make loads even, once no node has joined or left for settle_window; 0: none"`
	BrakePercent        int      `key:"brake_percent" help:"if more than this share of the nodes, and at least three, look dead at once, the leader takes nothing from them for another node_registration_ttl, unless their end is proven; 0: it does not wait"`
}

// daemonsKeys holds the durations of assignments, and which daemons run.
type daemonsKeys struct {
	AcknowledgeTimeout Duration `key:"acknowledge_timeout" help:"how long a node has to start an assigned unit"`
	DrainTimeout       Duration `key:"drain_timeout" help:"how long a revoked unit has to finish"`
	StopTimeout        Duration `key:"stop_timeout" help:"how long an agent has to return once its context is cancelled"`
	Disabled           []string `key:"disabled" help:"ids of daemons this node does not run"`
	OutputBuffer       int      `key:"output_buffer" help:"bytes of the output of each run of a command that the node keeps in memory for emitd daemon logs; all runs together keep at most 256 times as much; 0: nothing is kept"`
	Exec               []Exec   `key:"exec" help:"external commands run as daemons"`
}

// Exec is an external command as a daemon.
type Exec struct {
	ID                 string            `key:"id" help:"ID of the daemon, such as acme:reports"`
	Command            []string          `key:"command" help:"program and arguments; not run by a shell unless you name one"`
	Revision           int               `key:"revision" help:"if nodes have different entries for one ID, the entry with the highest revision counts; if revisions are equal, the one of the process that registered last. Raise it with each change if old and new nodes may start in any order"`
	Instances          int               `key:"instances" help:"number of units; 1 by default"`
	Keyed              bool              `key:"keyed" help:"one unit for each key that the store has for the daemon (emitd daemon keys), instead of a number of instances"`
	Weight             int               `key:"weight" help:"what one unit adds to a node's load; 1 by default"`
	Dir                string            `key:"dir" help:"working directory; emitd's own by default"`
	Env                map[string]string `key:"env" secret:"all" help:"variables for the command; it also gets PATH, HOME, USER, LOGNAME, SHELL, LANG, LANGUAGE, LC_*, TZ, TMPDIR and TERM as emitd has them, and EMITD_DAEMON, EMITD_UNIT, EMITD_GENERATION, EMITD_TERM, EMITD_NODE and, with a schedule, EMITD_DUE"`
	InheritEnv         []string          `key:"inherit_env" help:"further variables of emitd's own environment that the command gets: names, or prefixes followed by *, such as PROXY_*"`
	User               string            `key:"user" help:"name or number of the user that runs the command; emitd's own by default. Only root may name another"`
	Group              string            `key:"group" help:"name or number of the command's group; that of user by default"`
	Requires           map[string]string `key:"requires" help:"labels a node must have"`
	Spread             string            `key:"spread" help:"label to spread units over; zone by default"`
	AcknowledgeTimeout Duration          `key:"acknowledge_timeout" help:"overrides daemons.acknowledge_timeout, with the same lower bound"`
	DrainTimeout       Duration          `key:"drain_timeout" help:"overrides daemons.drain_timeout, with the same lower bound"`
	StallTimeout       Duration          `key:"stall_timeout" help:"a run that prints nothing for this long counts as failed; 0s: never. With a schedule more than 10s"`
	MaxFailures        int               `key:"max_failures" help:"consecutive failures before the node releases the unit; 5 by default, -1: never"`
	NoRebalance        bool              `key:"no_rebalance" help:"do not move running units to make loads even; they still move when their node leaves, dies or fails them"`
	Schedule           schedule          `key:"schedule"`
	OnAbandoned        string            `key:"on_abandoned" words:"exit" help:"exit: the node ends if a command cannot be ended; empty: it continues, and the unit stays occupied until the command ends"`
}

// schedule says when a command is run, if not all the time.
type schedule struct {
	Every    Duration `key:"every" help:"run the command once in each interval, 1s or more, instead of all the time"`
	Cron     string   `key:"cron" help:"run the command at these times: minute, hour, day of month, month, day of week, such as 0 3 * * 1-5, or @hourly, @daily, @weekly, @monthly, @yearly"`
	Timezone string   `key:"timezone" help:"time zone of cron, such as Europe/Berlin; UTC by default"`
	Missed   string   `key:"missed" words:"once,skip,all" help:"what to do about due times that passed while nothing could run. once (default): run once for all of them; skip: drop those that are more than a minute late; all: run once for each, at most catch_up times"`
	CatchUp  int      `key:"catch_up" help:"with missed set to all: how many missed due times are run at most; 10 by default, at most 100"`
	Attempts int      `key:"attempts" help:"runs for one due time until one ends with exit code 0; 3 by default"`
}

// queueKeys holds the defaults of queues.
type queueKeys struct {
	MinGap            string   `key:"min_gap" help:"shortest time between two commits of a queue: auto commits at once if no commit is under way (up to 2 ms later after many calls were answered together), otherwise 2 to 5 ms after the last one; 250ms costs fewer requests, and every call may wait that long"`
	WriteBudget       string   `key:"write_budget" help:"how many small commits (fewer than 27 records) each shard of a queue may write per second, on average. Larger commits are free, so throughput is not limited; with 8 per second, a call waits at most 125 ms. auto: 8 on s3 and gs, which bill each write, unlimited elsewhere; unlimited; or a number from 0.1 to 10000"`
	Claims            string   `key:"claims" words:"soft,durable" help:"for a queue that is declared by a call to this node without claims; other queues keep theirs. soft: a claim is answered at once and stored within a second, so a crash may deliver the job again; durable: a claim is answered once it is stored"`
	VisibilityTimeout Duration `key:"visibility_timeout" help:"likewise for a queue that is declared without it: how long a claimed job stays hidden"`
	DedupWindow       Duration `key:"dedup_window" help:"likewise, the deduplication window: how long a submitted ID is recognised"`
	MaxShards         int      `key:"max_shards" help:"most shards of all queues of the cluster together; a queue beyond it cannot be declared. All nodes need the same value"`
	MetricQueues      int      `key:"metric_queues" help:"how many queues have series of their own in a node's metrics: the troubled ones first, then the busiest; the others are summed under _OTHER"`
}

// outboxKeys names the database of the transactional outbox and lists its subscriptions.
type outboxKeys struct {
	URL            string         `key:"url" secret:"url" help:"database of the outbox, the one that the publishing applications use: sqlite:///absolute/path.db or postgres://user@host:port/database; store.url by default, if it is a SQL database"`
	Schema         string         `key:"schema" help:"Postgres schema that holds the outbox's tables; store.schema by default"`
	Prefix         string         `key:"prefix" help:"prefix of the outbox's table names; store.prefix by default"`
	MaxConnections int            `key:"max_connections" help:"most connections of a process to an outbox in Postgres, plus one for wake-ups; calls wait while all are busy. A busy relay uses two"`
	Retention      Duration       `key:"retention" help:"how long delivered messages are kept for a replay; 0s: they are deleted once delivered"`
	DeadRetention  Duration       `key:"dead_retention" help:"how long dead letters are kept; 0s: until they are purged"`
	MaxRetained    int            `key:"max_retained" help:"size of the log in bytes above which on_lag applies to subscriptions that have not delivered its oldest messages; 0: no limit"`
	OnLag          string         `key:"on_lag" words:"keep,forget" help:"what to do about such a subscription: keep only warns; forget skips the oldest messages that it has not delivered, as many as needed"`
	Subscriptions  []Subscription `key:"subscriptions" help:"readers of the outbox and their sinks; each is a daemon emit:outbox/<name>"`
}

// Subscription is a subscription of the outbox.
type Subscription struct {
	Name           string    `key:"name" help:"name of the subscription: lower-case letters, digits and ._:/-; its daemon is emit:outbox/<name>"`
	Topics         []string  `key:"topics" help:"topics to deliver, or prefixes followed by *; all by default. Messages of other topics are not delivered"`
	Sink           *Sink     `key:"sink" help:"where to deliver: {kind: webhook, url: …} with the settings of docs/how-to/outbox-sinks.md, or only a kind or URL"`
	Instances      int       `key:"instances" help:"units that share the 64 shards, each on another node if there are enough; 1 by default"`
	Start          string    `key:"start" words:"oldest,newest" help:"where a new subscription starts: oldest (the default) with the messages in the log, newest with those published later"`
	Policy         string    `key:"policy" words:"hold,skip,drop" help:"what happens to a message that cannot be delivered: hold (the default) its key waits for an operator, skip it becomes a dead letter, drop it is deleted"`
	Retry          retryKeys `key:"retry"`
	DeliverTimeout Duration  `key:"deliver_timeout" help:"longest duration of one call to the sink; 30s by default"`
	PageTimeout    Duration  `key:"page_timeout" help:"how long the other keys of a page wait for a call to the sink that does not return, before its key is parked; a third of deliver_timeout by default"`
	Parallel       int       `key:"parallel" help:"calls to the sink at once, for different keys; 4 by default"`
	PageRows       int       `key:"page_rows" help:"messages that are read at once; 1000 by default"`
}

// retryKeys holds the back-off of a parked key.
type retryKeys struct {
	MaxAttempts int      `key:"max_attempts" help:"attempts before the policy applies; 10 by default, -1: no limit. Those for a destination that does not exist do not count"`
	Backoff     Duration `key:"backoff" help:"pause after the first failure, doubled after each; 1s by default"`
	MaxBackoff  Duration `key:"max_backoff" help:"longest pause; 5m by default"`
	MissingFor  Duration `key:"missing_for" help:"how long a message is tried again while the topic, stream or queue that it names does not exist, before the policy applies; 15m by default. A key that is then held is tried every minute and goes on by itself once the destination exists"`
}

// Sink is the destination of a subscription.
type Sink struct {
	Kind     string
	Settings any // pointer to the Config of the kind's package
}

// API secures the listener.
type API struct {
	TokensFile string   `key:"tokens_file" help:"file that says who may call and do what: tokens, names of client certificates and users, with their roles (emitd token); if set, every path except the health endpoints requires one of them"`
	Proxies    []string `key:"proxies" help:"proxies that are believed when they name a user in user_header: addresses, networks such as 10.0.0.0/24, or certificate:NAME for the name in their client certificate"`
	UserHeader string   `key:"user_header" help:"header in which the proxies name the user who has signed in there, such as X-Forwarded-User; the user's roles are in tokens_file"`
	Origins    []string `key:"origins" help:"web origins whose pages may call the API, such as https://queue.example.org; only its own by default"`
	TLS        TLS      `key:"tls"`

	MaxConnections int `key:"max_connections" help:"most open connections of the listener, and most calls in progress; beyond it a new connection replaces an idle one, or else one of the address that has the most; 0: one for each 256 KiB of the cgroup's memory, at most 10000, and 10000 without a memory limit"`
	MaxInFlight    int `key:"max_in_flight" help:"bytes of request bodies and payloads in flight; each byte takes up to four bytes of memory; calls beyond it get 429; 0: an eighth of the cgroup's memory, at most 256 MiB, and 256 MiB without a memory limit"`
}

// TLS holds the listener's certificate, and how other nodes are called.
type TLS struct {
	Cert string `key:"cert" help:"PEM file of the certificate chain"`
	Key  string `key:"key" help:"PEM file of the private key"`

	CA         string `key:"ca" help:"PEM file of the authorities that issued the nodes' certificates, for calls to other nodes and by emitd queue and doctor; the system's by default"`
	ClientCA   string `key:"client_ca" help:"PEM file of authorities: callers must present a certificate of one of them in addition to their token (mTLS); health endpoints require none"`
	ClientCert string `key:"client_cert" help:"PEM file of the client certificate for calls to other nodes; cert and key by default"`
	ClientKey  string `key:"client_key" help:"PEM file of the private key of client_cert"`
	ServerName string `key:"server_name" help:"name in the certificates of other nodes; by default the host that is called"`
}

// telemetryKeys configures the log. OTEL_* variables are honoured unchanged.
type telemetryKeys struct {
	Log logKeys `key:"log"`
}

// logKeys configures the program's own log, on standard error.
type logKeys struct {
	Level  string `key:"level" words:"debug,info,warn,error" help:"lowest level that is logged"`
	Format string `key:"format" words:"auto,text,json" help:"auto: text on a terminal, otherwise json"`
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
			MaxMovesPerRound: plan.DefaultMaxMoves, BrakePercent: plan.DefaultBrakePercent,
		},
		Daemons: daemonsKeys{
			AcknowledgeTimeout: Duration(t.AcknowledgeTimeout), DrainTimeout: Duration(t.DrainTimeout),
			StopTimeout: Duration(t.StopTimeout), OutputBuffer: 64 << 10,
		},
		Queue: queueKeys{
			MinGap: "auto", WriteBudget: "auto", Claims: "soft",
			VisibilityTimeout: Duration(30 * time.Second), DedupWindow: Duration(10 * time.Minute), MaxShards: broker.DefaultMaxShards, MetricQueues: 50,
		},
		Outbox:    outboxKeys{MaxConnections: 8, Retention: Duration(24 * time.Hour), DeadRetention: Duration(720 * time.Hour), OnLag: "keep"},
		Telemetry: telemetryKeys{Log: logKeys{Level: "info", Format: "auto"}},
	}
}

// minConnections is the minimum, and the default, of store.max_connections.
const minConnections = 4

func profileTiming(profile string) lease.Timing {
	if t, ok := lease.OfProfile(profile); ok {
		return t
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

// billedWrites is the write budget that auto means on a store that bills each write.
const billedWrites = 8

// WritesPerSecond returns queue.write_budget; 0 means unlimited.
func (c Config) WritesPerSecond() float64 {
	scheme, _, _ := strings.Cut(c.Objects.URL, "://")
	switch c.Queue.WriteBudget {
	case "unlimited":
		return 0
	case "auto":
		if scheme == "s3" || scheme == "gs" {
			return billedWrites
		}
		return 0
	}
	n, _ := strconv.ParseFloat(c.Queue.WriteBudget, 64) // has been validated
	return n
}

// HasOutbox reports whether an outbox is configured for this node.
func (c Config) HasOutbox() bool { return c.Outbox.URL != "" || len(c.Outbox.Subscriptions) > 0 }

// OutboxURL returns outbox.url. If that is empty and store.url names a SQL database, it returns store.url.
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

// RelayConfig returns the settings as an outbox.Config. The caller sets log, sink and hooks.
func (s Subscription) RelayConfig() outbox.Config {
	return outbox.Config{
		Name: s.Name, Topics: s.Topics, Instances: s.Instances, Newest: s.Start == "newest", Policy: outbox.Policy(s.Policy),
		Retry: outbox.Retry{
			MaxAttempts: s.Retry.MaxAttempts, Backoff: time.Duration(s.Retry.Backoff), MaxBackoff: time.Duration(s.Retry.MaxBackoff),
			MissingFor: time.Duration(s.Retry.MissingFor),
		},
		DeliverTimeout: time.Duration(s.DeliverTimeout), PageTimeout: time.Duration(s.PageTimeout), Parallel: s.Parallel, PageRows: s.PageRows,
	}
}

// Periodic returns the schedule of the exec daemon; nil if it runs all the time.
func (e Exec) Periodic() *daemon.Periodic {
	s := e.Schedule
	if s == (schedule{}) {
		return nil
	}
	return s.periodic()
}

func (s schedule) periodic() *daemon.Periodic {
	return &daemon.Periodic{
		Interval: time.Duration(s.Every), Cron: s.Cron, TimeZone: s.Timezone,
		Missed: daemon.MissedPolicy(s.Missed), CatchUp: s.CatchUp, Attempts: s.Attempts,
	}
}

// Spec returns the specification of the exec daemon.
func (e Exec) Spec() daemon.Spec {
	instances := e.Instances
	if e.Keyed {
		instances = daemon.Keyed
	}
	return daemon.Spec{
		ID: daemon.ID(e.ID), Revision: int64(e.Revision), Instances: instances, Weight: e.Weight,
		Requires: e.Requires, Spread: e.Spread,
		AcknowledgeTimeout: time.Duration(e.AcknowledgeTimeout),
		DrainTimeout:       time.Duration(e.DrainTimeout),
		StallTimeout:       time.Duration(e.StallTimeout),
		MaxFailures:        e.MaxFailures, OnAbandoned: e.OnAbandoned, NoRebalance: e.NoRebalance,
	}
}
