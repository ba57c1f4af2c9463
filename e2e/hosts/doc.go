// Package hosts runs nodes on hosts of their own: network namespaces that a cable joins.
package hosts
