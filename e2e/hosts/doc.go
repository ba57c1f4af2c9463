// Package hosts runs nodes on separate hosts: network namespaces that a virtual cable connects.
package hosts
