// Package sim plays the nodes of the test cluster: scheduler, kubelet and virt-handler for any
// number of nodes, through real API writes only. KubeVirt's own controllers decide everything else.
// See docs/design/simulator.md.
//
// # Annotations
//
// What goes wrong, or slowly, is said by annotations. They are read when they matter, so they can be
// set and removed while the cluster runs, on any of these objects; the first that has it counts:
//
//	pod, VirtualMachineInstance, VirtualMachine (its own metadata), Node
//
// A VM's template annotations reach VMI and pods on KubeVirt's own way. An empty value switches on,
// "false" switches off what a less specific object switches on. Durations are Go's: 1500ms, 2m.
//
//	sim.vmip.io/…           value            effect
//	wrong-address           addresses, true  The pod gets these addresses instead of those that the network
//	                                         plugin gave it; "true" takes others nearby. The plugin's
//	                                         annotations on the pod follow, its records don't.
//	wrong-target-address    addresses, true  The same, for the targets of migrations only.
//	sandbox-failure         message          CNI ADD fails with the message. The kubelet records
//	                                         FailedCreatePodSandBox and tries again after 1, 2, 4, 5, 5 … s.
//	target-sandbox-failure  message          The same, for the targets of migrations only.
//	stuck-termination       true             The sandbox is not torn down: the pod stays Terminating, its
//	                                         containers ended, without CNI DEL.
//	silent (on a Node)      true             No heartbeats. Ready becomes Unknown, the node is tainted
//	                                         unreachable, its pods aren't ready. Nothing else happens to them
//	                                         or to their VMIs, whatever is asked for.
//	migration-fail          phase            Migrations fail in that phase of the VMIM: Scheduling, Scheduled
//	                                         and PreparingTarget by a launcher on the target that crashes,
//	                                         TargetReady and Running on the source.
//	migration-hang          phase            Migrations stay in that phase: Scheduling, PreparingTarget,
//	                                         TargetReady or Running. In Running they are given up after
//	                                         KubeVirt's progressTimeout.
//	slow-start              duration         A guest takes that long from Scheduled to Running; the
//	                                         containers of other pods take that long to start.
//	slow-stop               duration         A guest, or another pod's containers, take that long to shut
//	                                         down. What outlasts its grace period is killed.
//	slow-migration          duration         Running takes that long. KubeVirt's completionTimeoutPerGiB holds.
//	guest-ignores-shutdown  true             The guest is killed after its grace period: the VMI is Failed.
//	                                         Other pods are killed with exit code 137.
//	source-lingers          true             The launcher on the source doesn't end after a migration.
//
//	guest-agent             true             A guest agent is connected.
//	guest-address           addresses        What the agent reports: "192.0.2.7,fd00::7" for the primary
//	                                         interface, "lan=198.51.100.7" for another, "none" for no address.
//	guest-poweroff          true, crash      The guest powers off (VMI Succeeded) or crashes (VMI Failed). On
//	                                         the VMI it happens once, anywhere else to every next guest too.
//
// The kubelet itself keeps sim.vmip.io/sandbox on pods: what a container runtime remembers.
package sim
