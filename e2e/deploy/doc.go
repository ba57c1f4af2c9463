// Package deploy tests what lies in the folder deploy. The chart has no warning of Helm's linter, refuses wrong
// values, and renders what the types of Kubernetes and of the Prometheus operator accept; the plain manifests are the chart with its default values.
// promtool checks the alerts and plays their tests. Each alert and each panel of the dashboard uses metrics that
// emitd has, and each alert has its section in docs/how-to/alerts.md.
//
// Package docs starts the node that the systemd unit and the manifests describe.
package deploy
