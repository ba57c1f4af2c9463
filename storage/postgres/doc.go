// Package postgres keeps the cluster's state in a schema of a Postgres database (14 or newer).
//
// # What it promises
//
// Everything that package storage promises, and that with other things in the same database:
//
//   - Every call is one message of the simple protocol, therefore one transaction and one round
//     trip, and nothing rests on a session: it works behind a transaction pooler. A process that
//     is stopped in the middle of sending has sent nothing; no lock ever waits for a client.
//   - A follower's heartbeat writes its own row and nothing else, in place.
//   - Names are quoted and come from an allow-list; values never become SQL.
//   - The server's statistics (pg_stat_statements) have one entry for each kind of statement: values stand
//     only in statements whose constants every version of the server takes out, never in a CALL or a SET.
//   - The role needs USAGE on the schema and SELECT, INSERT, UPDATE and DELETE on its tables.
//     EXECUTE on the function heartbeat_1, which everybody has unless it is revoked, and
//     transactions that begin as READ COMMITTED, the server's default, make heartbeats cheap:
//     without, they do the same by statements, and a warning says so once.
//   - No error and no log has a password in it.
//
// # The rules of the statements
//
// The isolation is READ COMMITTED: a statement sees what was committed before *it* began, not
// before it waited. Therefore:
//
//   - Lock first, act in the next statement. Statements that decide never wait, so what they saw
//     is what their transaction commits against, and clock_timestamp() in them is not from before
//     a wait. Reads come last.
//   - One order of locks: IDs being registered, term, adverts, nodes by incarnation, units, commands,
//     lease, fences, counter. Who takes them in this order cannot deadlock.
//   - The row of the term is locked FOR KEY SHARE by a leader's write and FOR UPDATE by whoever
//     replaces or vacates the term: a take-over waits for a commit that runs, and a commit that
//     comes later finds another term. A renewal writes the row of the lease and waits for neither.
//     The row of a node that gets a unit is locked FOR KEY SHARE (it may beat, not leave), that of
//     one that is declared dead FOR UPDATE (it may not beat).
//   - Statements after a node's own write do something only if that write happened in this very
//     transaction, which a setting of the transaction tells: a late or repeated heartbeat that is
//     refused renews nothing.
//   - A heartbeat of a node that neither registers nor stands is one call of a function: the same
//     statements, each with a snapshot of its own, planned once in a session. It does not ask for
//     what the counter says is not there: events about members (rolled), open commands (waiting).
//   - Events are numbered from one row, counter, that is updated last; its lock makes the order of
//     numbers the order of commits. I8 holds statement by statement: the rows that a statement
//     changed are the events that it writes.
//
// # Wake-ups
//
// What changes coordination sends a notification (NOTIFY, in the same transaction) that names the
// incarnations concerned. [Store.Watch] listens on one connection of its own. A pooler that hands
// connections around accepts LISTEN and forgets it; Watch finds that out by a probe, says so once,
// and [Store.Capabilities] tells it. Heartbeats themselves notify nobody.
//
// # Many nodes in one process
//
// Thousands of nodes may share a store and its few connections. When all of them want something at
// once, they must not drown each other or the server:
//
//   - Everyday heartbeats have a quarter of the connections to themselves, of eight or more the
//     leader's renewals an eighth; registrations, reports, commits and all else share the rest.
//   - A call that got its connection only when less than a fifth of its time was left is not begun.
//     In a crowd that waits in line, all would be late otherwise, with the server's work done in vain.
//   - A call whose time is over in the middle of a statement ends when the server says that it has
//     ended it, half of Config.QueryTimeout and at most a second later: the connection stays. Only
//     one on which nothing comes even then is dropped.
//   - Stamps that are asked for at the same time travel together.
//
// # Fences
//
// [Store.Stamp] raises a unit's row in the table fence; nothing else touches it. [Store.Fence]
// locks the row FOR SHARE in a transaction of the user's own and compares. So effects of a run
// that was overtaken are refused, and its successor, who alone may have to wait, starts only after
// the last transaction that was let through has ended.
//
// # What fails, and what then
//
// Errors that pass by themselves are [storage.ErrUnavailable]: no connection, no answer in time, a
// lock that was not released, a deadlock. As with every error that is no answer, the call may have
// happened. A server that recovers or is read-only loses its pooled connections at once, because
// after a failover they lead to the wrong one.
//
// # What is not promised
//
// Postgres stores what it acknowledged only as durably as it is configured: with
// synchronous_commit off, or after an asynchronous failover, the newest rows are lost. Numbers do
// not repeat even then, and the store's identity changes (system identifier, timeline, or a mark in
// the rows if they went back in time on the same server); the coordinator does the rest. A role that can write these tables can do anything to the cluster.
package postgres
