package host

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
)

// Check reports what a node would find wrong on this machine without calling others: the token file, the
// certificate, and the commands of the exec daemons.
func Check(c *config.Loaded) fault.List {
	var bad fault.List
	g, err := newGuard(c.API, slog.New(slog.DiscardHandler))
	if err == nil && g.id.Load().server != nil {
		err = valid(g.id.Load().server.Certificates[0].Certificate, c.API.TLS.Cert)
	}
	if err != nil {
		bad = append(bad, fault.Of(err)...)
	}
	h := &host{Options: Options{Config: c}}
	for i, e := range c.Daemons.Exec {
		if err := h.command(e).CheckHost(); err != nil {
			at := fmt.Sprintf("daemons.exec[%d]", i)
			bad = append(bad, fault.New(fault.BadDaemon, "%s (%s): daemon %s cannot start on this machine: %w", at, c.OriginOf(at), e.ID, err).
				Hint("correct command, dir or user; or run emitd config check where the daemon is to run"))
		}
	}
	return bad
}

// valid returns a fault unless the first certificate of the chain is valid now.
func valid(chain [][]byte, file string) error {
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return fault.New(fault.AccessFile, "api.tls.cert %s: %w", file, err)
	}
	switch now := time.Now(); {
	case now.After(leaf.NotAfter):
		return fault.New(fault.AccessFile, "api.tls.cert %s expired at %s", file, leaf.NotAfter.UTC().Format(time.RFC3339)).Hint("renew the certificate")
	case now.Before(leaf.NotBefore):
		return fault.New(fault.AccessFile, "api.tls.cert %s is not valid before %s", file, leaf.NotBefore.UTC().Format(time.RFC3339)).
			Hint("set the machine's clock, or take another certificate")
	}
	return nil
}
