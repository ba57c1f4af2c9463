package host

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
)

// TestAdvertised checks that a node advertises an address by which others reach it, never a wildcard. It
// once was [::]:7070 on every pod of the documented deployment.
func TestAdvertised(t *testing.T) {
	t.Parallel()
	all, one := &net.TCPAddr{IP: net.IPv6unspecified, Port: 7070}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 5), Port: 7070}
	routes := map[string]string{
		"db.example.org:5432": "10.1.0.7", "db.example.org:6000": "10.1.0.8", "127.0.0.1:5432": "127.0.0.1",
		"10.9.0.1:5432": "10.9.0.7", "s3.local:9000": "10.2.0.7", "192.0.2.1:9": "10.3.0.7",
	}
	for name, c := range map[string]struct {
		advertise, store, objects string
		at                        net.Addr
		routes                    bool // there is a route to any address
		own                       []string
		want                      string
	}{
		"as it is said":       {"emitd-1.example.org:443", "postgres://db.example.org/x", "", all, true, nil, "emitd-1.example.org:443"},
		"of the listener":     {"", "postgres://db.example.org/x", "", one, true, nil, "10.0.0.5:7070"},
		"to the store":        {"", "postgres://user:secret@db.example.org/x", "", all, true, nil, "10.1.0.7:7070"},
		"to its port":         {"", "postgres://db.example.org:6000/x", "", all, true, nil, "10.1.0.8:7070"},
		"to the second store": {"", "postgres://down.example.org,10.9.0.1/x", "", all, true, nil, "10.9.0.7:7070"},
		"store of this host":  {"", "postgres://127.0.0.1/x", "", all, true, nil, "10.3.0.7:7070"},
		"store on a socket":   {"", "postgres:///x?host=/run/postgresql", "", all, true, nil, "10.3.0.7:7070"},
		"to the bucket":       {"", "sqlite:///x.db", "s3://b/p?endpoint=http://s3.local:9000", all, true, nil, "10.2.0.7:7070"},
		"anywhere else":       {"", "sqlite:///x.db", "", all, true, nil, "10.3.0.7:7070"},
		"no route":            {"", "sqlite:///x.db", "", all, false, []string{"127.0.0.1", "fe80::1", "10.4.0.7"}, "10.4.0.7:7070"},
		"version 6":           {"", "sqlite:///x.db", "", all, false, []string{"::1", "fd00::7"}, "[fd00::7]:7070"},
		"nothing":             {"", "sqlite:///x.db", "", all, false, []string{"127.0.0.1"}, "127.0.0.1:7070"},
	} {
		var conf config.Config
		conf.Advertise, conf.Store.URL, conf.Objects.URL = c.advertise, c.store, c.objects
		got := advertised(&conf, c.at, network{
			from: func(target string) (netip.Addr, error) {
				if to, ok := routes[target]; ok && c.routes {
					return netip.ParseAddr(to)
				}
				return netip.Addr{}, errors.New("no route to host")
			},
			own: func() (out []netip.Addr) {
				for _, a := range c.own {
					out = append(out, netip.MustParseAddr(a))
				}
				return out
			},
		})
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestThisNetwork checks that the address can be called on any machine.
func TestThisNetwork(t *testing.T) {
	t.Parallel()
	got := advertised(&config.Config{}, &net.TCPAddr{IP: net.IPv6unspecified, Port: 7070}, thisNetwork)
	if at, err := netip.ParseAddrPort(got); err != nil || at.Addr().IsUnspecified() || at.Port() != 7070 {
		t.Errorf("%s: %v", got, err)
	}
}
