package host

import (
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
)

// advertised returns the address under which other nodes reach this listener. It is never a wildcard,
// because a wildcard is the address of no node. The first of these that exists counts:
//
//  1. The configured address.
//  2. The listener's own address, if it has one.
//  3. The address from which this host reaches the stores that all nodes share, because they are in the
//     same network.
//  4. The address from which it reaches any other host.
//  5. Any address of this host that other hosts can reach.
func advertised(c *config.Config, at net.Addr, n network) string {
	if c.Advertise != "" {
		return c.Advertise
	}
	tcp, ok := at.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return at.String()
	}
	own := tcp.AddrPort()
	for _, target := range append(storeHosts(c.Store.URL, c.Objects.URL), elsewhere...) {
		if ip, err := n.from(target); err == nil && usable(ip) {
			return netip.AddrPortFrom(ip, own.Port()).String()
		}
	}
	for _, ip := range n.own() {
		if usable(ip) {
			return netip.AddrPortFrom(ip, own.Port()).String()
		}
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), own.Port()).String()
}

// elsewhere holds addresses reserved for documentation. No network contains them, so the route to them is
// the default route. Nothing is sent to them.
var elsewhere = []string{"192.0.2.1:9", "[2001:db8::1]:9"}

// usable reports whether other hosts may reach this one by an address.
func usable(ip netip.Addr) bool {
	return ip.IsValid() && !ip.IsLoopback() && !ip.IsUnspecified() && !ip.IsLinkLocalUnicast() && !ip.IsMulticast()
}

// storeHosts returns the hosts that the URLs name, each with a port.
func storeHosts(urls ...string) (out []string) {
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			continue
		}
		hosts := u.Host
		switch u.Scheme {
		case "postgres", "postgresql": // may name several
			if hosts == "" {
				hosts = u.Query().Get("host")
			}
		case "s3", "gs":
			end, err := url.Parse(u.Query().Get("endpoint"))
			if err != nil {
				continue
			}
			hosts = end.Host
		default:
			continue
		}
		for _, host := range strings.Split(hosts, ",") {
			if host == "" || strings.HasPrefix(host, "/") { // a Unix socket of this host
				continue
			}
			if _, _, err := net.SplitHostPort(host); err != nil {
				host = net.JoinHostPort(strings.Trim(host, "[]"), "5432")
			}
			out = append(out, host)
		}
	}
	return out
}

// network is what this host knows about its network; tests replace it.
type network struct {
	from func(target string) (netip.Addr, error) // the source address of packets to the target
	own  func() []netip.Addr
}

var thisNetwork = network{
	from: func(target string) (netip.Addr, error) {
		c, err := net.Dial("udp", target) // sends nothing: only looks up the route
		if err != nil {
			return netip.Addr{}, err
		}
		defer c.Close()
		local, err := netip.ParseAddrPort(c.LocalAddr().String())
		return local.Addr().Unmap().WithZone(""), err
	},
	own: func() (out []netip.Addr) {
		all, _ := net.InterfaceAddrs() // none after an error
		for _, a := range all {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				out = append(out, p.Addr().Unmap())
			}
		}
		slices.SortStableFunc(out, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() }) // IPv4 first
		return out
	},
}
