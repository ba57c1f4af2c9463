package backend

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/sqlite"
)

// Away reports whether a store that could not be opened may answer later without any change of the
// configuration or the store: it is down, starting, overloaded, cut off or locked. A store that refuses
// (a password, a schema, a certificate, a request) or does not exist (a database, a bucket, a file, a
// host name) is not away. That is a mistake, and must be reported at once.
//
// An unknown error is not away.
func Away(err error) bool {
	if _, locked := errors.AsType[*sqlite.LockedError](err); locked {
		return true
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return slices.Contains(passing, pg.Code) || slices.Contains(passing, pg.Code[:min(2, len(pg.Code))])
	}
	if errors.Is(err, blob.ErrThrottled) {
		return true
	}
	if answer, ok := errors.AsType[*blob.Error](err); ok && answer.Status != 0 {
		return answer.Status >= http.StatusInternalServerError && answer.Status != http.StatusNotImplemented
	}
	return silent(err)
}

// passing lists the Postgres error codes, and classes of codes, of conditions that end by themselves.
var passing = []string{
	"08",    // the connection; a pooler says so while it does not reach its server
	"53",    // no connection, memory or disk left
	"40001", // another transaction was first
	"40P01", // deadlock
	"55P03", // something holds a lock
	"57014", // a lock was held for longer than the statement timeout
	"57P01", // ended by an operator
	"57P02", // crashed
	"57P03", // starting, stopping or recovering
}

// silent reports whether no answer came but one may come later: nothing listens, the network is cut or
// slow, or only a standby was found, which may be promoted. Of several hosts, one such answer is enough.
func silent(err error) bool {
	if sink.Untrusted(err) || errors.Is(err, fs.ErrPermission) {
		return false
	}
	op, isOp := errors.AsType[*net.OpError](err)
	if isOp { // calls of buckets are repeated until a deadline, so this is checked before the deadline
		if name, ok := errors.AsType[*net.DNSError](op.Err); ok {
			return !name.IsNotFound
		}
	}
	for _, end := range []error{context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, pgconn.ErrReadOnlyConnection, pgconn.ErrStandbyConnection} {
		if errors.Is(err, end) {
			return true
		}
	}
	if !isOp {
		name, ok := errors.AsType[*net.DNSError](err)
		return ok && !name.IsNotFound
	}
	_, malformed := errors.AsType[*net.AddrError](op.Err)
	return !malformed && slices.Contains([]string{"dial", "read", "write"}, op.Op) // other operations belong to TLS
}
