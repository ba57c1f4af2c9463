package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/host"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

// checkCommand asks one node how it is, for probes that run a command.
func (a *app) checkCommand() *cobra.Command {
	var addr string
	unassigned := -1
	endpoints := map[string]*bool{"/livez": new(bool), "/startupz": new(bool), "/leaderz": new(bool)}
	cmd := &cobra.Command{
		Use: "check", Short: "Ask a node whether it is ready, for probes",
		Long: "Ask the node with this configuration whether it is ready, as /readyz answers. It is for probes that run a\n" +
			"command, such as a container's health check. The exit code is 0 if the node says yes, 6 if it says no, and 4 if\n" +
			"it does not answer within --timeout. Nothing is read from the store.\n\n" +
			"The node is called at listen, on this host, so its certificate is not checked; with --addr it is.\n\n" +
			"With --max-unassigned the question is about the cluster, and the store is read: the exit code is 6 if more units\n" +
			"than that have no node, of whatever daemon. Paused units do not count.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("max-unassigned") {
				return a.checkUnassigned(cmd, unassigned)
			}
			path := "/readyz"
			for p, want := range endpoints {
				if !*want {
					continue
				}
				if path != "/readyz" {
					return fault.New(fault.Usage, "emitd check asks one question at a time").Hint("give one of --live, --started and --leader")
				}
				path = p
			}
			cfg, err := a.load(a.input())
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
			defer cancel()
			return a.probeNode(ctx, cfg, addr, path)
		},
	}
	cmd.Flags().BoolVar(endpoints["/livez"], "live", false, "ask whether the process makes progress, whatever the store does (/livez)")
	cmd.Flags().BoolVar(endpoints["/startupz"], "started", false, "ask whether the node has joined the cluster (/startupz)")
	cmd.Flags().BoolVar(endpoints["/leaderz"], "leader", false, "ask whether the node leads (/leaderz); never use it to restart a node")
	cmd.Flags().StringVar(&addr, "addr", "", "host:port of another node")
	cmd.Flags().IntVar(&unassigned, "max-unassigned", 0, "ask the store whether at most this many units have no node")
	return cmd
}

// checkUnassigned returns nil if at most so many units have no node.
func (a *app) checkUnassigned(cmd *cobra.Command, most int) error {
	for _, other := range []string{"live", "started", "leader", "addr"} {
		if cmd.Flags().Changed(other) {
			return fault.New(fault.Usage, "--max-unassigned asks the store, and --%s asks a node", other).Hint("give one of them")
		}
	}
	if most < 0 {
		return fault.New(fault.Usage, "--max-unassigned is %d, want 0 or more", most)
	}
	return a.withCluster(cmd.Context(), false, func(_ context.Context, c *cluster) error {
		free := slices.DeleteFunc(c.status().Daemons, func(u view.Unit) bool { return u.State != daemon.Unassigned })
		if len(free) > most {
			return fault.New(fault.Degraded, "%d units have no node, more than %d; %s: %s", len(free), most, free[0].Unit, free[0].Reason)
		}
		fmt.Fprintln(a.Out, "ok")
		return nil
	})
}

// probeNode returns nil if the node answers 200.
func (a *app) probeNode(ctx context.Context, cfg *config.Loaded, addr, path string) error {
	secured, err := host.ClientTLS(cfg.API.TLS)
	if err != nil {
		return err
	}
	if addr == "" {
		if addr, err = ownAddress(cfg.Listen); err != nil {
			return err
		}
		if secured != nil {
			// No name in the certificate has to be this host's loopback address. Nothing secret is sent.
			secured.InsecureSkipVerify = true
		}
	}
	status, text, err := getHealth(ctx, addr, path, secured)
	switch {
	case err != nil:
		return fault.New(fault.NodeUnreachable, "no answer of the node at %s: %w", addr, err)
	case status != http.StatusOK && status != http.StatusServiceUnavailable:
		return fault.New(fault.NodeUnreachable, "%s%s answers %d: the address may not belong to an emitd", addr, path, status)
	case status != http.StatusOK:
		return fault.New(fault.NotReady, "the node at %s answers %s with %d: %s", addr, path, status, strings.Join(strings.Fields(text), " "))
	}
	fmt.Fprintln(a.Out, "ok")
	return nil
}

// ownAddress returns where a process of this host reaches a listener.
func ownAddress(listen string) (string, error) {
	name, port, err := net.SplitHostPort(listen)
	if err != nil || port == "0" {
		return "", fault.New(fault.Usage, "listen %s does not say at which port the node listens", listen).Hint("give --addr host:port")
	}
	if ip, err := netip.ParseAddr(cmp.Or(name, "0.0.0.0")); err == nil && ip.IsUnspecified() {
		name = "127.0.0.1"
		if ip.Is6() {
			name = "::1"
		}
	}
	return net.JoinHostPort(name, port), nil
}

// getHealth returns the status and the beginning of the text that a node answers on a path.
func getHealth(ctx context.Context, addr, path string, secured *tls.Config) (int, string, error) {
	scheme := "http"
	if secured != nil {
		scheme = "https"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr+path, nil)
	if err != nil {
		return 0, "", err
	}
	transport := &http.Transport{TLSClientConfig: secured, DisableKeepAlives: true}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<14)) // the text is for people
	return resp.StatusCode, string(text), err
}
