package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/host"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/node"
)

// reachTimeout bounds how long one node may take to answer.
const reachTimeout = 3 * time.Second

// reach calls each node at its advertised address, as another node would from this host. This matters
// because calls on a queue are forwarded to the node that serves it.
func (d *doctor) reach(ctx context.Context, snap *daemon.Snapshot) {
	secured, err := host.ClientTLS(d.cfg.API.TLS)
	if err != nil {
		d.bad("nodes", err)
		return
	}
	var advertised []node.Member
	for _, n := range snap.Nodes {
		if n.Present() && n.LeaderState == "" && n.Address != "" {
			advertised = append(advertised, n)
		}
	}
	problems := make([]error, len(advertised))
	var all sync.WaitGroup
	for i, n := range advertised {
		all.Go(func() { problems[i] = reachNode(ctx, n.Address, secured) })
	}
	all.Wait()
	reached := 0
	for i, n := range advertised {
		if problems[i] == nil {
			reached++
			continue
		}
		d.add("nodes", warn, "set advertise on that node to the host:port by which other nodes reach it, and open that port between hosts",
			"node %s cannot be reached from this host at %s: %s", view.Line(n.Name), view.Line(n.Address), view.Line(problems[i].Error()))
	}
	if reached > 0 {
		d.add("nodes", fine, "", "%d of %d nodes answer at the address that they advertise", reached, len(advertised))
	}
}

// reachNode returns why a node cannot be reached.
func reachNode(ctx context.Context, address string, secured *tls.Config) error {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is not a host:port", address)
	}
	if ip, err := netip.ParseAddr(name); err == nil && ip.IsUnspecified() {
		return errors.New("this address cannot be called: the node listens on all addresses and does not know at which one others reach it")
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	status, _, err := getHealth(ctx, address, "/livez", secured)
	if err == nil && status != http.StatusOK && status != http.StatusServiceUnavailable {
		err = fmt.Errorf("/livez answers %d: the address may not belong to an emitd", status)
	}
	return err
}
