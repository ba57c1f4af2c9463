package sink

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/progress"
)

// Unreachable reports whether an error says that no connection could be made: the name does not resolve,
// the port refuses, or the certificate is not trusted. Then no message can be delivered. An error on an
// established connection does not count, because the message may be its cause.
func Unreachable(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && (op.Op == "dial" || op.Op == "proxyconnect") {
		return true
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return true
	}
	return Untrusted(err)
}

// Untrusted reports whether an error says that TLS failed: the certificate has expired, is for another
// name or from an unknown authority, or the peer does not speak TLS.
func Untrusted(err error) bool {
	_, verify := errors.AsType[*tls.CertificateVerificationError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	_, host := errors.AsType[x509.HostnameError](err)
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	return verify || invalid || host || unknown || plain || alert || errors.Is(err, http.ErrSchemeMismatch)
}

// Down wraps an error as [outbox.ErrSinkDown]. what says what was attempted.
func Down(what string, err error) error {
	return fmt.Errorf("%w: %s: %w", outbox.ErrSinkDown, what, err)
}

// Permanent returns an [outbox.ErrPermanent] with a cause.
func Permanent(format string, args ...any) error {
	return fmt.Errorf("%w: %w", outbox.ErrPermanent, fmt.Errorf(format, args...))
}

// Missing returns an [outbox.ErrMissing] with a cause. The message names the destination that does not exist.
func Missing(format string, args ...any) error {
	return fmt.Errorf("%w: %w", outbox.ErrMissing, fmt.Errorf(format, args...))
}

// WithoutURL removes the URL from an HTTP client's error, because its query may hold a token.
func WithoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// Host returns the scheme and host of a URL, without user, password, path and query.
func Host(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" {
		return "(no host)"
	}
	return u.Scheme + "://" + u.Host
}

// TLS configures how a connection is protected. The zero value trusts the system's authorities and
// presents no certificate.
type TLS struct {
	CA         string `yaml:"ca"`          // file of authorities to trust instead of the system's
	Cert       string `yaml:"cert"`        // file of the certificate to present
	Key        string `yaml:"key"`         // file of its private key
	ServerName string `yaml:"server_name"` // name to expect instead of the address's
	// Insecure trusts any certificate. Use it only for experiments.
	Insecure bool `yaml:"insecure"`
}

// Config reads the files and returns the TLS configuration.
func (t TLS) Config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.Insecure} // the user's own choice
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, fmt.Errorf("read tls.ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca %s has no certificates", t.CA)
		}
	}
	if t.Cert != "" || t.Key != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("read tls.cert and tls.key: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// WithDeadline returns a context for one call: it lasts at most d.After, and not longer than ctx. A relay takes an
// error with its cause for that of a message without an answer, and finds out whether the receiver answers anybody.
func WithDeadline(ctx context.Context, d TimeoutError) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d.After, progress.Unanswered(d))
}

// TimeoutError is the cause of a context that ended because a call took too long.
type TimeoutError struct {
	What  string
	After time.Duration
}

// Error says what did not answer, and within which time.
func (d TimeoutError) Error() string {
	return fmt.Sprintf("%s did not answer within %v", d.What, d.After)
}

// Redact replaces secrets in a text, for errors of libraries that may repeat their arguments.
func Redact(text string, secrets ...Secret) string {
	for _, s := range secrets {
		if len(s) > 0 {
			text = strings.ReplaceAll(text, string(s), s.String())
		}
	}
	return text
}
