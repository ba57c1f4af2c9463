// Package postgres keeps the cluster's state in a schema of a Postgres database (14 or newer).
//
//	store, err := postgres.OpenConfig(ctx, postgres.Config{URL: url, AutoMigrate: true})
//	defer store.Close() // after the coordinator's Run has returned
//	c, err := coordinator.New(store, coordinator.Config{})
//
// Defaults: schema emitd, 4 connections and one more for notifications, 5 s for each call. Without AutoMigrate the
// schema must be at this program's version already ([Migrate], [MigrationSQL]); [GrantSQL] prints the rights that a
// role needs. An agent writes its own tables in [Store.InTx], which refuses a run that was replaced. Errors that pass
// by themselves are storage.ErrUnavailable. docs/how-to/run-a-cluster.md describes the operation.
//
// # What it promises
//
// The package promises everything that package storage promises, and does so beside other users of
// the same database:
//
//   - Every call is one message of the simple protocol, therefore one transaction and one round
//     trip. Nothing depends on a session, so the store works behind a transaction pooler. A process
//     that is stopped in the middle of sending has sent nothing.
//   - No lock waits for a client. What a transaction with locks answers fits into the server's buffers. What
//     can be larger is sent after the commit: see "Large answers".
//   - A follower's heartbeat writes its own row and nothing else, in place.
//   - Names are quoted and come from an allow-list; values never become SQL.
//   - The server's statistics (pg_stat_statements) have one entry for each kind of statement.
//     Values stand only in statements whose constants every version of the server removes, never in
//     a CALL or a SET.
//   - The role needs USAGE on the schema, SELECT, INSERT, UPDATE and DELETE on its tables, and
//     EXECUTE on the functions heartbeat_8 and register_8, which every role has unless it is revoked. If the
//     role's transactions do not begin as READ COMMITTED, the server's default, each heartbeat sets its
//     isolation first, which costs the server a few statements more.
//   - No error and no log contains a password.
//
// # The way of a heartbeat
//
// [Store.Heartbeat] takes a connection from the share of its kind (traffic.go), because a thousand
// nodes that register at once must not delay renewals. A heartbeat that neither registers nor
// campaigns, reads no members in the same round trip, and reports no exit evidence and no returned run is simple. The
// store sends a simple heartbeat as one call of the database function heartbeat_8
// (migrations/heartbeat_8.sql). A registration that does nothing else is one call of the function
// register_8 (register.go, migrations/register_8.sql). Any other heartbeat becomes a list of statements,
// which [Store.Heartbeat] joins into one message (heartbeat.go, message.go, sql/*.sql). All forms do the
// same in the same order:
//
//  1. They take the locks that the call needs, in the order below.
//  2. They write the node's own row, if the sequence number is newer. Otherwise the heartbeat is
//     refused and nothing after it takes effect. In the form of statements, the write sets a mark
//     for the rest of the transaction, and each later statement that writes requires the mark.
//  3. They apply returned runs and exit evidence, and then renew the lease or decide the election.
//  4. They read the reply: the newest event, the term, members, units, membership events, waiting commands.
//
// The function heartbeat_8 leaves the term and the units out if they are still those of the newest reply that the
// node has. The row counter has a revision, a random value that triggers replace with every change of
// either table. A simple heartbeat names the revision that the store remembers for its node. A random
// value never stands for two states, so rows that were lost or restored need no further check. A
// statement that changes no row leaves the revision alone.
//
// The rows come back as text; rows.go and composite.go decode them. A further round trip is needed
// only in these cases. If the heartbeat was refused, it finds out why. If the server process is new
// to this process, it reads the server's identity; if the rows record another identity, or have
// lost what this process has seen, it records the new one (identity.go). If the function has left lists
// out because they are large, it reads them. If the node is more than 500 events behind, it reads the next
// ones in order. Both count only if the server is still the same one. If the function was called in another
// isolation, it has done nothing: the store repeats the call, once, and sets the isolation from
// then on. If several nodes of the process want the member list at the same time, they read it
// afterwards, together.
//
// # Large answers
//
// The server sends what a message answers while its transaction still runs. Once the buffers are full it waits for the
// client, with all locks, and no timeout of the server ends that wait. So the commit comes first wherever an answer
// may have more than some kilobytes:
//
//   - In a message of statements, BEGIN and COMMIT end the transaction in the middle of the message (message.go, commit). The
//     member list, units, events and commands of a heartbeat are read after them, at one moment.
//   - The functions leave out lists that are large. The store reads them in a second round trip (heartbeat.go, readApart),
//     which has a connection as early as the first: a renewal's before all others, and else with the heartbeats.
//     The term is that of the first answer, because the verdict is about it.
//   - The outcomes of more than a few steps are the rows as these steps have left them. A setting of the session keeps them
//     from the commit to the end of the message (report.go, outcomes).
//
// # The rules of the statements
//
// The isolation is READ COMMITTED: a statement sees what was committed before *it* began, not
// before it waited. Therefore:
//
//   - Lock first, act in the next statement. Statements that decide never wait, so their
//     transaction commits against the rows that they saw. For the same reason clock_timestamp() in
//     them is never older than a wait. Reads come last.
//   - All transactions take locks in one order: IDs being registered, term, adverts, nodes by
//     incarnation, units, commands, lease, fences, counter. Therefore they cannot deadlock.
//   - A leader's write locks the row of the term FOR KEY SHARE. A transaction that replaces or
//     vacates the term locks it FOR UPDATE. So an election waits for a commit that is under way,
//     and a later commit finds another term. A renewal writes the row of the lease and waits for
//     neither. The row of a node that is assigned a unit is locked FOR KEY SHARE: the node may send
//     heartbeats but not leave. The row of a node that is declared dead is locked FOR UPDATE: it
//     may not send heartbeats.
//   - Statements after a node's own write take effect only if that write happened in this
//     transaction. A setting of the transaction records the write. A late or repeated heartbeat
//     that is refused therefore renews nothing.
//   - The functions run the same statements as the message. Each has a snapshot of its own and is
//     planned once in a session, and only if its case occurs. The functions skip what the row counter says
//     does not exist: events about members (rolled) and open commands (waiting).
//   - A renaming of the cluster locks the whole table node first, against everybody who locks a row of it. A registration
//     locks its row before it reads the cluster's name.
//   - Events are numbered from one row, counter, that is updated last. Its lock makes the order of
//     numbers the order of commits. Each statement writes the events of exactly the rows that it
//     changed, so no change lacks its event (invariant I8).
//   - The triggers on the tables unit and term update the row counter too. So the first statement of a
//     transaction that changes one of them locks counter, and takes all its other locks before.
//
// # Wake-ups
//
// A transaction that changes assignment or leadership also sends a notification (NOTIFY) that names
// the incarnations concerned. [Store.Watch] listens on one connection of its own. A pooler that
// hands connections around accepts LISTEN and forgets it. Watch detects that by a probe, logs it
// once, and probes again each minute. Until notifications arrive, [Store.Capabilities] declares NoWakeUps. An ordinary heartbeat sends no notification;
// a registration, and exit evidence, do.
//
// # Many nodes in one process
//
// Thousands of nodes may share a store and its few connections. When all of them call at once, they
// must not overload each other or the server:
//
//   - Ordinary heartbeats have an eighth of the connections to themselves, at least one. With eight
//     or more connections, the leader's renewals have another eighth. A leader's passes, batches
//     of stamps and shared member lists have a third eighth, and take no others. Registrations,
//     reports and all other calls share the rest with heartbeats. Registrations have a quarter of the
//     connections at most: they wait for each other in the server, so more of them are not faster.
//   - A call that got its connection when less than a fifth of its time was left is not begun.
//     Otherwise, in a long line of calls, each would end late and the server's work would be
//     wasted.
//   - A call whose time is over in the middle of a statement waits for the server to say that it
//     ended the statement. It waits half of Config.QueryTimeout, at most a second, and keeps the
//     connection. Only a connection on which nothing arrives even then is dropped.
//   - Fence stamps that are requested at the same time are sent together.
//   - Nodes that want the member list at the same time, as all do that register, read it together, in
//     a second round trip. A registration that repeats an unanswered one has the rank of heartbeats.
//   - Nodes share the events about members that any of them has read, as long as the store's identity is the same.
//
// # Fences
//
// [Store.StampFence] raises a unit's row in the table fence. Nothing else changes that row.
// [Store.Fence] locks the row FOR SHARE in the user's own transaction and compares the generation.
// So the database refuses the effects of a run that was superseded. The next run, which alone may
// have to wait, starts only after the last accepted transaction has ended.
//
// # What fails, and what then
//
// Errors that pass by themselves are [storage.ErrUnavailable]: no connection, no answer in time, a
// lock that was not released, a deadlock. As with every error that is not an answer of the
// contract, the call may have happened. When a server recovers or is read-only, the pool drops its
// connections to it at once, because after a failover they lead to the wrong server.
//
// # What is not promised
//
// Postgres stores what it acknowledged only as durably as it is configured. With synchronous_commit
// off, or after an asynchronous failover, the newest rows are lost. Numbers do not repeat even
// then, and the store identity changes. It consists of the system identifier, the timeline, and a
// mark in the rows if they went back in time on the same server. The coordinator reacts to that
// change. With synchronous_commit off, a crash that has lost nothing but a heartbeat changes it too: nothing is
// assigned or started for node_registration_ttl then. Anyone with a role that can write these tables can do anything to the cluster.
package postgres
