package fault

import "slices"

// The exit codes of the program.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitUnreachable = 4
	ExitConflict    = 5
	ExitDegraded    = 6
)

// Entry describes a code in the catalogue.
type Entry struct {
	Code  Code   `json:"code"`
	Exit  int    `json:"exit"`
	Title string `json:"title"`
	Means string `json:"means"`
	Do    string `json:"do"`
}

// The codes. A code keeps its meaning for ever, and a code that is no longer used is not reused.
const (
	Usage        Code = "E1001"
	ConfigRead   Code = "E1101"
	ConfigSyntax Code = "E1102"
	UnknownKey   Code = "E1203"
	BadValue     Code = "E1204"
	UnknownEnv   Code = "E1205"
	SecretFile   Code = "E1206"
	TimingClash  Code = "E1207"
	StoreURL     Code = "E1208"
	ObjectsURL   Code = "E1209"
	OpenListen   Code = "E1210"
	BadDaemon    Code = "E1211"
	BadOutbox    Code = "E1212"
	OutboxURL    Code = "E1213"
	CannotListen Code = "E1301"
	StateDir     Code = "E1302"
	AccessFile   Code = "E1303"
	Telemetry    Code = "E1304"
	BadCall      Code = "E1401"
	MissingRole  Code = "E1402"
	NoToken      Code = "E1403"
	Internal     Code = "E1900"

	IDInUse         Code = "E2101"
	NoLeader        Code = "E2103"
	NotLeader       Code = "E2104"
	NotAnswered     Code = "E2105"
	CommandUnknown  Code = "E2106"
	OtherCluster    Code = "E2107"
	NodesLive       Code = "E2108"
	SlowStore       Code = "E2109"
	CommandConflict Code = "E2110"
	CommandRefused  Code = "E2111"
	CommandWaits    Code = "E2112"
	BadKeys         Code = "E2113"
	NoDaemon        Code = "E2201"
	NoNode          Code = "E2202"
	NoOutput        Code = "E2203"
	Degraded        Code = "E2301"
	DoctorFails     Code = "E2302"
	DoctorWarns     Code = "E2303"
	NotReady        Code = "E2304"
	NodeUnreachable Code = "E2305"

	QueueDown     Code = "E3101"
	NoQueue       Code = "E3102"
	NoJob         Code = "E3103"
	StaleClaim    Code = "E3104"
	QueueFull     Code = "E3105"
	QueueUnknown  Code = "E3106"
	BadJob        Code = "E3107"
	NotAllowed    Code = "E3108"
	QueueDamaged  Code = "E3109"
	QueueFaulty   Code = "E3110"
	QueueShards   Code = "E3111"
	QueueMoving   Code = "E3112"
	ObjectsUnfit  Code = "E3301"
	ObjectsFailed Code = "E3302"

	NoSubscription   Code = "E4101"
	NoMessage        Code = "E4102"
	BadMessage       Code = "E4103"
	OutboxSchema     Code = "E4104"
	SubscriptionUsed Code = "E4105"

	Unreachable Code = "E5101"
	ReadOnly    Code = "E5102"
	OldSchema   Code = "E5103"
	NewSchema   Code = "E5104"
	StoreFailed Code = "E5105"
	NoRight     Code = "E5106"
	NotMigrated Code = "E5107"
	Locked      Code = "E5108"
	NoDatabase  Code = "E5109"
	StoreFull   Code = "E5110"
)

// All returns the catalogue, sorted by code.
func All() []Entry { return slices.Clone(catalogue) }

// Lookup returns a code's entry.
func Lookup(code Code) (Entry, bool) {
	i := slices.IndexFunc(catalogue, func(e Entry) bool { return e.Code == code })
	if i < 0 {
		return Entry{}, false
	}
	return catalogue[i], true
}

var catalogue = []Entry{
	{
		Usage, ExitUsage, "wrong usage of a command",
		"The command line has an unknown command or flag, or an argument is missing or superfluous. Nothing was done.",
		"see the arguments and flags of the command: emitd help",
	},
	{
		ConfigRead, ExitUsage, "config file cannot be read",
		"The file named by --config or EMITD_CONFIG does not exist, is not readable or is larger than 1 MiB. A file that was named explicitly is never skipped.",
		"correct the path or its permissions",
	},
	{
		ConfigSyntax, ExitUsage, "config file is not valid YAML",
		"The file cannot be parsed, has more than one document, or its top level is not a mapping.",
		"correct the line shown; emitd config check reads the file without starting anything",
	},
	{
		UnknownKey, ExitUsage, "unknown config key",
		"The config file has a key that this version does not know. Keys are never ignored: with a misspelt key, the default would apply without notice.",
		"correct or remove the key; all keys: emitd config show",
	},
	{
		BadValue, ExitUsage, "config value is not usable",
		"A value has the wrong type, is out of range or is not one of the allowed words. The message names the key and where the value came from.",
		"correct the value; all keys: docs/reference/config.md",
	},
	{
		UnknownEnv, ExitUsage, "unknown EMITD_ variable",
		"The environment has a variable that begins with EMITD_ and is not a setting. Only these are ignored: EMITD_DAEMON, EMITD_UNIT, EMITD_GENERATION, EMITD_TERM, EMITD_NODE and EMITD_DUE (given to exec daemons), EMITD_TEST_* and Kubernetes' service links EMITD_SERVICE_*, EMITD_PORT and EMITD_PORT_*.",
		"correct or unset the variable; a key's variable is EMITD_ and its path in capitals",
	},
	{
		SecretFile, ExitUsage, "secret file cannot be used",
		"EMITD_X_FILE names a file that cannot be read, or EMITD_X is set as well.",
		"correct the path, or keep only one of the two variables",
	},
	{
		TimingClash, ExitUsage, "durations contradict each other",
		"The durations cannot all be kept together, for example a lease that ends before a second heartbeat could renew it. The message names each field, its value and the smallest valid value.",
		"raise one or lower the other, or remove them all to use those of the profile",
	},
	{
		StoreURL, ExitUsage, "store.url is missing or not usable",
		"No store was named, its URL has an unknown scheme, or its path is not absolute. Supported: sqlite:///absolute/path.db, postgres://user@host:port/database, and the object stores file:///absolute/dir, s3://bucket/prefix and gs://bucket/prefix.",
		"give --store sqlite:///absolute/path.db or --store postgres://user@host/database, or set store.url or EMITD_STORE_URL",
	},
	{
		ObjectsURL, ExitUsage, "objects.url is not usable",
		"The URL of the object store has an unknown scheme or no absolute path. Supported: file:///absolute/dir, s3://bucket/prefix, gs://bucket/prefix, and mem:// for experiments.",
		"correct objects.url (--objects), or remove it",
	},
	{
		OpenListen, ExitUsage, "refused to listen without protection",
		"listen is not a loopback address, and TLS, tokens or both are missing. Without TLS, connections are not encrypted. Without tokens, whoever reaches the address may do everything: read payloads and the output of commands, purge messages, drain nodes, pause daemons.",
		"listen on 127.0.0.1, or set api.tls.cert, api.tls.key and api.tokens_file, or accept the risk with --insecure (a pod behind a network policy, for example)",
	},
	{
		BadDaemon, ExitUsage, "daemon cannot be declared",
		"An entry of daemons.exec has an id that is empty, too long, malformed, reserved or used twice, no command, or a number out of range.",
		"correct the entry; an id looks like acme:reports",
	},
	{
		BadOutbox, ExitUsage, "a subscription of the outbox is not usable",
		"An entry of outbox.subscriptions is incomplete, has a value out of range or is duplicated, or its sink cannot be created: an unknown kind, a missing setting, a file that cannot be read. No node was started.",
		"correct the entry; sinks and their settings: docs/how-to/outbox-sinks.md",
	},
	{
		OutboxURL, ExitUsage, "the outbox has no database",
		"Messages are published in the transactions of applications, so the outbox is in their database: SQLite or Postgres. outbox.url names none, and neither does store.url.",
		"set outbox.url: sqlite:///absolute/app.db or postgres://user@host/database",
	},
	{
		CannotListen, ExitFailed, "cannot listen",
		"The address of listen cannot be bound: it is in use, needs a privilege or does not belong to this machine.",
		"choose another --listen, or stop the process that uses the address",
	},
	{
		StateDir, ExitFailed, "state directory cannot be used",
		"emitd dev could not create or lock its state directory.",
		"stop the other emitd dev, change directory, or use --ephemeral",
	},
	{
		AccessFile, ExitUsage, "certificate or token file cannot be used",
		"A file named by api.tls.cert, api.tls.key or api.tokens_file cannot be read or parsed.",
		"correct the file; docs/how-to/access.md shows what the lines of an access file may be",
	},
	{
		Telemetry, ExitUsage, "telemetry cannot be set up",
		"An OTEL_* variable names an exporter or protocol that does not exist or cannot be started.",
		"correct the OTEL_* variables or set OTEL_SDK_DISABLED=true",
	},
	{
		BadCall, ExitUsage, "the admin API refuses the call",
		"The path or method does not exist, a parameter or the body is not as expected, an Idempotency-Key was used for another command, or the call comes from a page of another origin. Nothing was done.",
		"correct what the message names; all calls: docs/reference/admin-api.md",
	},
	{
		MissingRole, ExitFailed, "the caller may not do this",
		"The token, certificate or user is known, and its roles do not allow the call, or are limited to other queues and subscriptions. Nothing was done.",
		"use a token with the role that the message names; emitd token ls lists what each may do",
	},
	{
		NoToken, ExitNotFound, "there is no such token",
		"The access file (api.tokens_file) has no token of this name. A token that stands in the file as it is sent has no name.",
		"list the tokens: emitd token ls",
	},
	{
		Internal, ExitFailed, "failed",
		"An error occurred that has no code of its own.",
		"see the message; if it does not help, report it with the output of emitd doctor and emitd version",
	},

	{
		IDInUse, ExitConflict, "node ID in use",
		"Another live process sends heartbeats with this node ID; it continued while this one was refused. Two processes with one ID would keep fencing each other, so this one ends. After a kill -9 of a node with a fixed ID only its row is left, not the process: a new node waits until the row expires (node_registration_ttl) and joins.",
		"leave node.id empty (each process then generates one), or give each process its own",
	},
	{
		NoLeader, ExitDegraded, "there is no leader",
		"The store names no leader. After a crash of the leader this lasts as long as the lease; if it lasts longer, no node may lead or none reaches the store.",
		"see emitd status and emitd node ls; a node with never_lead does not campaign",
	},
	{
		NotLeader, ExitConflict, "no longer the leader",
		"The term that the command names had ended when the command was read. Nothing was written: the term check refused the command, it was not lost.",
		"retry, or see why: emitd leader history --since 30m",
	},
	{
		NotAnswered, ExitFailed, "command not carried out yet",
		"The command is stored, but the leader has not answered within --timeout. The leader carries it out at its next heartbeat; if another node leads by then, the command is refused.",
		"see emitd status; check whether the leader's heartbeats are answered",
	},
	{
		CommandUnknown, ExitFailed, "it is not known whether the command was carried out",
		"The store did not answer, or stopped answering, before --timeout. The command may have been carried out, may wait in the store for the leader, or may never have reached it. It is valid for one term and has no effect after that.",
		"when the store answers, look for the id in emitd events --kind operator.resign -o json, and for the end of the term in emitd leader history",
	},
	{
		OtherCluster, ExitConflict, "the store belongs to another cluster",
		"The store holds the name of its cluster, which its first node wrote, and this node (or command) uses another. A staging node that is pointed at the production store by mistake would be given production's daemons, so it is refused: it has written nothing and ends.",
		"correct store.url or cluster; to rename the cluster itself, stop all nodes and run emitd cluster rename OLD NEW",
	},
	{
		NodesLive, ExitConflict, "nodes of the cluster are live",
		"A cluster can be renamed only while none of its nodes is live: a node with the old name would be refused when it next registers. A node that was killed counts as live until node_registration_ttl has passed.",
		"stop all nodes, and try again",
	},
	{
		SlowStore, ExitConflict, "the store is too slow for the timings",
		"A bucket applies the changes of all nodes one after the other. With one more node, and the time that one change takes, calls would time out while they wait, and units would move before they have started. This node has waited for node_registration_ttl + leader_stop_timeout + drain_timeout + stop_timeout + 2·query_timeout, the time after which a dead node no longer counts and a leaving one has left. It has written and run nothing; the other nodes continue. The message has the figures that would work.",
		"give all nodes the timings that the message names, use coordinator.profile default, run fewer nodes, or use a database",
	},
	{
		CommandConflict, ExitConflict, "the cluster is not as the command expects",
		"Another term leads, or the unit has another generation, than the command names. Somebody or something was faster. Nothing was changed.",
		"look again, then repeat the command: emitd status, emitd daemon ls -o wide",
	},
	{
		CommandRefused, ExitConflict, "the command was refused",
		"What the command asks for is not possible now; the message says why: the node is not live, is cordoned, lacks a label or does not run the daemon, the unit is paused or pinned, or another command is in force. Nothing was changed.",
		"see emitd daemon explain UNIT and emitd status; end the other command first (uncordon, resume, unpin)",
	},
	{
		CommandWaits, ExitFailed, "command not carried out yet",
		"The command is stored, but it was not finished within --timeout. It stays in force: the next leader of a version that knows the command goes on with it.",
		"see emitd status, and emitd events for the command's ID",
	},
	{
		BadKeys, ExitUsage, "keys that cannot be changed",
		"A key is no name (it is empty, longer than 256 bytes, or has characters that cannot be printed), a key is named twice, there are too many, or the daemon has no keys. Nothing was changed.",
		"correct the keys; what a keyed daemon is: docs/how-to/dynamic-units.md",
	},
	{
		NoDaemon, ExitNotFound, "no such daemon",
		"No live node declares a daemon with that ID, and the store has no unit of it.",
		"list them: emitd daemon ls",
	},
	{
		NoNode, ExitNotFound, "no such node",
		"The store has no node with that name or ID.",
		"list them: emitd node ls",
	},
	{
		NoOutput, ExitNotFound, "no output is kept",
		"A node keeps the latest output of the commands that it runs (daemons.exec) in memory, for the newest run of each unit and the one before. It keeps nothing of other daemons, and what it has kept ends with its process.",
		"see where the unit is and was: emitd daemon explain UNIT, emitd events --daemon UNIT",
	},
	{
		Degraded, ExitDegraded, "cluster is degraded",
		"There is no leader, a node is late or deaf, or a unit is not assigned. Only with status --exit-code.",
		"see the lines marked ! in emitd status",
	},
	{
		DoctorFails, ExitFailed, "doctor found a problem",
		"At least one check failed; each says what to do.",
		"see the lines marked fail",
	},
	{
		DoctorWarns, ExitDegraded, "doctor has a warning",
		"No check failed, but at least one warns of something that will fail or costs too much; each says what to do.",
		"see the lines marked warn",
	},
	{
		NotReady, ExitDegraded, "the node says no",
		"The node answers, but it is not ready, has not joined or does not lead, whichever emitd check asked for. The message has its reasons.",
		"see emitd status and the log of the node",
	},
	{
		NodeUnreachable, ExitUnreachable, "the node does not answer",
		"Nothing listens at the address, it answers too late, or what listens is not emitd.",
		"check listen, api.tls and whether the node runs; another node is asked with --addr",
	},

	{
		QueueDown, ExitUnreachable, "no broker of the queue answers",
		"No node could be reached, or none knows a node that serves the queue now. A takeover takes at most a second after a clean stop, and the node's registration TTL after a crash.",
		"try again; see where the queue's daemon is: emitd daemon ls, emitd daemon explain emit:queue/<queue>",
	},
	{
		NoQueue, ExitNotFound, "no such queue",
		"The queue is not declared. Nothing was done.",
		"list the queues with emitd queue ls, or create it with emitd queue declare",
	},
	{
		NoJob, ExitNotFound, "no such job",
		"The queue has no job with that ID: it never had one, or the job ended and the deduplication window has passed.",
		"see emitd queue peek",
	},
	{
		StaleClaim, ExitConflict, "the claim is over",
		"The token is not that of a valid claim: its visibility timeout has passed, the job was completed, failed, released or cancelled, or the token belongs to another queue. Nothing was changed.",
		"claim the job again; a worker that needs longer extends its claims",
	},
	{
		QueueFull, ExitFailed, "the queue is full",
		"The broker has no memory or no bandwidth for more jobs. Nothing of the call was stored.",
		"try again later; see emitd queue stats, add workers or shards",
	},
	{
		QueueUnknown, ExitFailed, "it is not known whether the call was carried out",
		"No answer arrived after the call was sent, and repeating the call did not succeed in time.",
		"repeat the command with the same --id or --key, which makes a repetition harmless",
	},
	{
		BadJob, ExitUsage, "the queue refuses the request",
		"A field is missing, is too long or has an unknown value. Nothing of the call was stored.",
		"correct the field that the message names",
	},
	{
		NotAllowed, ExitFailed, "the node does not know the caller",
		"The nodes were started with api.tokens_file, and the call had no token, one that is not in that file, or one that has expired or was revoked.",
		"name a file with a valid token: --token-file",
	},
	{
		QueueDamaged, ExitFailed, "the stored data of the queue is damaged",
		"An object of a shard, or the list of queues, is missing, differs from what was written, or is an older version. That shard is not served, so that no job depends on damaged data; the other shards and queues are served. If the list of queues is damaged, the queues that are known are served, and no queue can be declared or removed.",
		"see what is damaged: emitd queue verify; put the objects back as they were; or accept the loss: emitd queue repair QUEUE --dry-run, then without --dry-run; the list of queues: emitd queue repair --list",
	},
	{
		QueueFaulty, ExitDegraded, "emitd queue verify has found damage",
		"At least one object of the queues is missing, differs from what was written, or is an older version. The table names each; objects with LOST = no are redundant: nothing that was acknowledged depends on them.",
		"put the objects back as they were; or accept the loss: emitd queue repair QUEUE --dry-run, then without --dry-run; the list of queues: emitd queue repair --list",
	},
	{
		QueueShards, ExitFailed, "the cluster would have too many shards",
		"All queues of a cluster together have at most queue.max_shards shards, because each shard takes memory on the node that serves it, used or not. Shards of removed queues count until their objects are deleted, which takes a few minutes. Existing queues are served and can be changed even if the limit was lowered.",
		"declare fewer shards; remove queues that are no longer needed: emitd queue ls, emitd queue remove QUEUE; or raise queue.max_shards on all nodes",
	},
	{
		QueueMoving, ExitConflict, "the queue is being resharded",
		"The number of the queue's shards is being changed to another one than was asked for. One change must end before the next begins. Nothing was done.",
		"wait until it has ended: emitd queue ls; in the stage preparing it can be cancelled: emitd queue reshard QUEUE --shards with the present number",
	},

	{
		ObjectsUnfit, ExitFailed, "the object store does not support conditional writes",
		"A write that should have been refused, because the object had changed, was accepted. Two brokers would overwrite each other's acknowledged jobs there, so this node starts none. Other daemons run, and calls about queues are forwarded to nodes that serve them.",
		"use a store with conditional writes, or remove objects.url: then this node serves no queues; details: emitd doctor",
	},
	{
		ObjectsFailed, ExitUnreachable, "the object store cannot be used",
		"The object store that objects.url names cannot be reached, does not exist, or refuses this program. A node runs its other daemons meanwhile and tries again, after a second at first and after 12 at most.",
		"check the address, the bucket and the credentials: emitd doctor",
	},
	{
		NoSubscription, ExitNotFound, "no such subscription of the outbox",
		"The outbox has no subscription with that name. A subscription exists once a relay has opened it for the first time. Nothing was done.",
		"list them: emitd outbox stats",
	},
	{
		NoMessage, ExitNotFound, "no such message in the outbox",
		"The subscription has no waiting, held or dead message with that number: it was delivered, skipped or retried, or never existed. Of a replay: the log has no message in that range, because it ends before it, or because its messages were removed after outbox.retention. Nothing was done.",
		"list messages that are parked or dead: emitd outbox ls",
	},
	{
		BadMessage, ExitUsage, "the message cannot be published",
		"A field is missing, is too long or has a form that no sink can carry. Nothing was published.",
		"correct the field that the message names",
	},
	{
		OutboxSchema, ExitFailed, "the outbox's tables are missing or of another version",
		"The database is reachable, but the tables of the outbox are missing or are not of the version that this program needs. Nothing was done.",
		"create or update them: emitd migrate up --outbox; if they are newer than this program, run the newer emitd",
	},
	{
		SubscriptionUsed, ExitConflict, "the subscription is in use",
		"A node has the subscription in its configuration, or a relay of it has not ended yet. If it were forgotten now, the relay would create it again, and deliver the whole log once more or, with start: newest, lose what is pending. Nothing was done.",
		"remove it from outbox.subscriptions of every node, restart them, then repeat the command",
	},
	{
		Unreachable, ExitUnreachable, "store unreachable",
		"The store did not answer: wrong address, no network, the server is down or starting, or it answers later than --timeout. A starting node waits for the store, logs a line each minute and shows the reason at /readyz, unless store.wait is false. It does not wait if there is a mistake to correct: a host name or a file that does not exist, a certificate that is not trusted.",
		"check the address with the store's own tools; emitd doctor shows details",
	},
	{
		ReadOnly, ExitFailed, "store is read-only",
		"The store accepts no writes: it is a standby, a primary set read-only, or a file or file system without write permission. A node cannot send heartbeats to it.",
		"name the primary (target_session_attrs=read-write), or give the process write permission on the file and its directory",
	},
	{
		OldSchema, ExitFailed, "store schema is too old",
		"The schema in the store is older than this program needs.",
		"bring it up to date: emitd migrate up --store URL, or start with --migrate; rows are kept",
	},
	{
		NewSchema, ExitFailed, "store schema is too new",
		"The schema in the store was written by a newer version than this program understands.",
		"run the newer emitd",
	},
	{
		StoreFailed, ExitFailed, "store failed",
		"The store returned an error that has no code of its own.",
		"see the message; emitd doctor shows details",
	},
	{
		NoRight, ExitFailed, "store denies access",
		"The store refused the role or the password, or the role lacks a privilege on the schema.",
		"correct the URL, or grant what emitd migrate get --grants-only prints; after that the role needs no DDL rights",
	},
	{
		NotMigrated, ExitFailed, "store has no schema",
		"The store is reachable but holds no tables of emitd under this schema and prefix.",
		"create them: emitd migrate up --store URL; or start a node, which creates them in an empty store",
	},
	{
		Locked, ExitUnreachable, "store is locked",
		"A process has held the write lock of the SQLite file for longer than a call may wait. Writers wait for the lock, readers do not. A process that is stopped inside a write transaction holds it until it continues or ends.",
		"emitd doctor names the process",
	},
	{
		NoDatabase, ExitUnreachable, "database does not exist",
		"The server is reachable, but has no database with the name in store.url.",
		"create it (createdb NAME), or correct the URL",
	},
	{
		StoreFull, ExitFailed, "store is full",
		"The bucket has reached the bound of what it keeps of a cluster (4 MiB). It takes no further units, keys, commands, locks and longer states. Nothing of the call was stored. What runs goes on, and what makes the cluster smaller is done.",
		"remove keys (emitd daemon keys remove) or declare fewer units; a cluster that needs more belongs in a database",
	},
}
