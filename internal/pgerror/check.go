package pgerror

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/address"
)

// Check refuses a connection string, a URL or key=value pairs, that pgx should not use: see package
// address. The error contains no part of it.
func Check(text string) error {
	if strings.HasPrefix(text, "postgres://") || strings.HasPrefix(text, "postgresql://") {
		if _, err := address.URL(text); err != nil {
			return err
		}
	}
	_, err := pgxpool.ParseConfig(text)
	if _, missing := errors.AsType[*fs.PathError](err); missing {
		return errors.New("names a file that cannot be read (sslrootcert, sslcert, sslkey)")
	}
	if err != nil {
		return errors.New("is not a valid connection string, want postgres://user:password@host:port/database (special characters in a password percent-encoded) or key=value pairs")
	}
	return nil
}
