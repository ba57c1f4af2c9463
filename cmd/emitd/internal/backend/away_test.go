package backend

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/sqlite"
)

// TestAway checks that conditions that end by themselves count as away, and mistakes that need a
// correction do not.
func TestAway(t *testing.T) {
	t.Parallel()
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	pg := func(code string) error { return &pgconn.PgError{Code: code, Message: "m"} }
	noName, noServer := &net.DNSError{IsNotFound: true}, &net.DNSError{IsTemporary: true}
	object := func(kind error, status int, cause error) error {
		return &blob.Error{Op: "read", Key: "k", Kind: kind, Status: status, Err: cause}
	}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"nobody listens":                    {dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), true},
		"no route":                          {dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), true},
		"no network":                        {dial(os.NewSyscallError("connect", syscall.ENETUNREACH)), true},
		"no socket yet":                     {&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.ENOENT)}, true},
		"a socket of others":                {&net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}, false},
		"no port":                           {dial(&net.AddrError{Err: "invalid port"}), false},
		"reset":                             {&net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, true},
		"the connection was closed":         {fmt.Errorf("receive: %w", io.ErrUnexpectedEOF), true},
		"no answer in time":                 {fmt.Errorf("%w: %w", storage.ErrUnavailable, context.DeadlineExceeded), true},
		"no name server":                    {noServer, true},
		"no such host":                      {noName, false},
		"no name server of a bucket":        {object(blob.ErrUnavailable, 0, errors.Join(context.DeadlineExceeded, dial(noServer))), true},
		"no such host of a bucket":          {object(blob.ErrUnavailable, 0, errors.Join(context.DeadlineExceeded, dial(noName))), false},
		"one host unknown, the other away":  {errors.Join(noName, dial(syscall.ECONNREFUSED)), true},
		"only a standby":                    {fmt.Errorf("validate: %w", pgconn.ErrReadOnlyConnection), true},
		"a certificate of a stranger":       {x509.UnknownAuthorityError{}, false},
		"TLS alert":                         {&net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}, false},
		"starting":                          {pg("57P03"), true},
		"too many connections":              {pg("53300"), true},
		"the pooler reaches no server":      {pg("08P01"), true},
		"stopped by an operator":            {pg("57P01"), true},
		"locked for too long":               {pg("57014"), true},
		"wrong password":                    {pg("28P01"), false},
		"no such role":                      {pg("28000"), false},
		"no such database":                  {pg("3D000"), false},
		"read-only":                         {pg("25006"), false},
		"no right":                          {pg("42501"), false},
		"a mistake of ours":                 {pg("42601"), false},
		"an answer without a code":          {pg(""), false},
		"throttled":                         {object(blob.ErrThrottled, 503, nil), true},
		"a proxy without its server":        {object(blob.ErrUnavailable, 502, nil), true},
		"not implemented":                   {object(blob.ErrUnfit, 501, nil), false},
		"a request that makes no sense":     {object(blob.ErrUnavailable, 400, nil), false},
		"no such bucket":                    {object(blob.ErrNoBucket, 404, nil), false},
		"refused credentials":               {object(blob.ErrDenied, 403, nil), false},
		"no directory":                      {object(blob.ErrUnavailable, 0, syscall.ENOTDIR), false},
		"a bucket that ignores conditions":  {fmt.Errorf("probe: %w", blob.ErrUnfit), false},
		"a locked file":                     {&sqlite.LockedError{Path: "p", Err: context.DeadlineExceeded}, true},
		"no file":                           {&sqlite.FileError{Path: "p", Problem: "does not exist"}, false},
		"no schema":                         {&storage.SchemaError{Want: 1}, false},
		"a URL that makes no sense":         {fault.New(fault.StoreURL, "bad"), false},
		"unavailable for an unknown reason": {storage.ErrUnavailable, false},
	} {
		if got := Away(Fault(fmt.Errorf("open: %w", c.err))); got != c.want {
			t.Errorf("%s: away is %t, want %t", name, got, c.want)
		}
	}
}
