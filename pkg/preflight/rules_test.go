package preflight

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/ledger"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/machine"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/profile"
)

func TestIdentityRules(t *testing.T) {
	for name, c := range map[string]check{
		"C12 a bare instance": {rule: NotPersistent, change: func(f *Facts) { f.View.VM = nil; f.View.VMI.OwnerReferences = nil }, want: []string{"NotPersistent Refuse"}, says: []string{"owned by nothing"}},
		"C12 an instance of a replica set": {rule: NotPersistent, change: func(f *Facts) {
			f.View.VM = nil
			f.View.VMI.OwnerReferences = ownedBy("VirtualMachineInstanceReplicaSet", "set")
		}, want: []string{"NotPersistent Refuse"}, says: []string{"VirtualMachineInstanceReplicaSet/set"}},
		"a machine that runs":                    {rule: NotPersistent},
		"a machine that does not run":            {rule: NotPersistent, change: stop},
		"C12 a replica of a pool":                {rule: PoolOwned, change: func(f *Facts) { f.View.VM.OwnerReferences = ownedBy("VirtualMachinePool", "web") }, want: []string{"OwnedByPool Refuse"}, says: []string{"VirtualMachinePool/web"}},
		"a machine that something else controls": {rule: PoolOwned, change: func(f *Facts) { f.View.VM.OwnerReferences = ownedBy("Cluster", "x") }},
		"a machine that a pool owns, not controls": {rule: PoolOwned, change: func(f *Facts) {
			f.View.VM.OwnerReferences = ownedBy("VirtualMachinePool", "web")
			f.View.VM.OwnerReferences[0].Controller = nil
		}},
		"Argo CD by label":      {rule: ManagedByGitOps, change: func(f *Facts) { f.View.VM.Labels = map[string]string{"argocd.argoproj.io/instance": "apps"} }, want: []string{"ManagedByGitOps Warn"}, says: []string{"Argo CD"}},
		"Argo CD by annotation": {rule: ManagedByGitOps, change: func(f *Facts) { f.View.VM.Annotations = map[string]string{"argocd.argoproj.io/tracking-id": "x"} }, want: []string{"ManagedByGitOps Warn"}},
		"Flux":                  {rule: ManagedByGitOps, change: func(f *Facts) { f.View.VM.Labels = map[string]string{"kustomize.toolkit.fluxcd.io/name": "apps"} }, want: []string{"ManagedByGitOps Warn"}, says: []string{"Flux", "kustomize.toolkit.fluxcd.io/name"}},
		"labels of everybody": {rule: ManagedByGitOps, change: func(f *Facts) {
			f.View.VM.Labels = map[string]string{"app.kubernetes.io/instance": "x", "app.kubernetes.io/managed-by": "Helm"}
		}},
		"labels of the template are not the object": {rule: ManagedByGitOps, change: func(f *Facts) {
			f.View.VM.Spec.Template.ObjectMeta.Labels = map[string]string{"argocd.argoproj.io/instance": "apps"}
		}},
	} {
		t.Run(name, func(t *testing.T) { run1(t, c) })
	}
}

func TestNetworkRules(t *testing.T) {
	attach := func(f *Facts) { iface(f).Pod, iface(f).Attachment = false, "tenant-a/lan" }
	neighbour := func(f *Facts) {
		f.Neighbours = []Interface{{Interface: machine.Interface{Name: "lan"}, Profile: "spiderpool", Keys: []string{ipKey}}}
	}
	held := func(wins bool, a string) func(*Facts) {
		return func(f *Facts) {
			iface(f).Records = []profile.Record{{Object: "ipamhandle/x", Addresses: ips(a), Wins: wins, Release: "calicoctl ipam release --ip=" + a}}
		}
	}
	for name, c := range map[string]check{
		"C10 nobody can choose":        {rule: CannotChoose, change: func(f *Facts) { iface(f).Capabilities.Choose = no("Cilium reads no annotation") }, want: []string{"CNICannotChoose Refuse"}, says: []string{"Cilium reads no annotation", "kubectl vmip profile db-1 -n tenant-a"}},
		"C01 C02 a second network":     {rule: CannotChoose, change: func(f *Facts) { attach(f); iface(f).Capabilities.Choose = no("ipAddrs is pod-wide") }, want: []string{"SecondaryNetworkUnsupported Refuse"}, says: []string{"ipAddrs is pod-wide"}},
		"a second network that can":    {rule: CannotChoose, change: attach},
		"a network that was not asked": {rule: CannotChoose, change: func(f *Facts) { iface(f).Capabilities = profile.Capabilities{} }, want: []string{"CNICannotChoose Unverified"}},
		"a network that can":           {rule: CannotChoose},

		"C03 two of a family":        {rule: TooManyAddresses, change: func(f *Facts) { iface(f).Want = ips("198.51.100.20", "198.51.100.21") }, want: []string{"TooManyAddresses Refuse"}, says: []string{"198.51.100.20 and 198.51.100.21 are both IPv4"}},
		"C03 two of IPv6 beside one": {rule: TooManyAddresses, change: func(f *Facts) { iface(f).Want = ips("198.51.100.20", "2001:db8::8", "2001:db8::9") }, want: []string{"TooManyAddresses Refuse"}},
		"one of each":                {rule: TooManyAddresses, change: func(f *Facts) { iface(f).Want = ips("198.51.100.20", "2001:db8::8") }},

		"both families where one only": {rule: DualStack, change: func(f *Facts) {
			iface(f).Want = ips("198.51.100.20", "2001:db8::8")
			iface(f).Capabilities.DualStack = no("one family")
		}, want: []string{"DualStackUnsupported Refuse"}},
		"both families, chosen automatically": {rule: DualStack, change: func(f *Facts) {
			iface(f).Want, iface(f).Families = nil, 2
			iface(f).Capabilities.DualStack = no("one family")
		}, want: []string{"DualStackUnsupported Refuse"}},
		"both families, nobody knows":              {rule: DualStack, change: func(f *Facts) { iface(f).Families = 2; iface(f).Capabilities.DualStack = profile.Capability{} }, want: []string{"DualStackUnsupported Unverified"}},
		"one family where one only":                {rule: DualStack, change: func(f *Facts) { iface(f).Capabilities.DualStack = no("one family") }},
		"both families where both":                 {rule: DualStack, change: func(f *Facts) { iface(f).Families = 2 }},
		"C02 a neighbour obeys the same key":       {rule: SharedKeys, change: neighbour, want: []string{"PodWideAnnotation Refuse"}, says: []string{ipKey + " is pod-wide: interface lan is served by spiderpool"}},
		"a neighbour with a key of its own":        {rule: SharedKeys, change: func(f *Facts) { neighbour(f); f.Neighbours[0].Keys = []string{"lan.tenant-a." + ipKey} }},
		"an interface is no neighbour of itself":   {rule: SharedKeys, change: func(f *Facts) { neighbour(f); f.Neighbours[0].Name = "default" }},
		"C30 not over a restart":                   {rule: StickyOverRestart, change: func(f *Facts) { iface(f).Capabilities.Restart = no("whereabouts is not VM-scoped") }, want: []string{"NotStickyOverRestart Refuse"}},
		"over a restart, unknown":                  {rule: StickyOverRestart, change: func(f *Facts) { iface(f).Capabilities.Restart = profile.Capability{} }, want: []string{"NotStickyOverRestart Unverified"}},
		"over a restart, but not a migration":      {rule: StickyOverRestart, change: func(f *Facts) { iface(f).Capabilities.Migration = no("x") }},
		"C38 not over a migration":                 {rule: StickyOverMigration, change: func(f *Facts) { iface(f).Capabilities.Migration = no("Calico 3.27") }, want: []string{"NotStickyOverMigration Refuse"}, says: []string{"Calico 3.27"}},
		"C37 over a migration, unreadable":         {rule: StickyOverMigration, change: func(f *Facts) { iface(f).Capabilities.Migration = profile.Capability{Reason: "forbidden"} }, want: []string{"NotStickyOverMigration Unverified"}},
		"over a migration":                         {rule: StickyOverMigration},
		"no interface has a reservation":           {rule: StickyOverMigration, change: func(f *Facts) { f.Interfaces = nil }},
		"a reservation that can't be migrated":     {rule: MigrationLater, change: func(f *Facts) { iface(f).Capabilities.Migration = no("Calico 3.27") }, want: []string{"CNINotSticky Warn"}},
		"a reservation, migration unknown":         {rule: MigrationLater, change: func(f *Facts) { iface(f).Capabilities.Migration = profile.Capability{} }, want: []string{"CNINotSticky Info"}},
		"a reservation that can":                   {rule: MigrationLater},
		"the record has another address":           {rule: RecordWins, change: held(true, "198.51.100.77"), want: []string{"CNIRecordConflict Refuse"}, says: []string{"ipamhandle/x holds 198.51.100.77", "would ask for 198.51.100.20", "--ip 198.51.100.77", "calicoctl ipam release"}},
		"the record has another, nothing is asked": {rule: RecordWins, change: func(f *Facts) { held(true, "198.51.100.77")(f); iface(f).Want, iface(f).Rows = nil, nil }, want: []string{"CNIRecordConflict Refuse"}},
		"the plugin has the reserved address":      {rule: AddressNotServed},
		"the plugin does not have it": {rule: AddressNotServed, change: func(f *Facts) {
			iface(f).RenderErr = errors.New("address 198.51.100.20 is in no subnet of Kube-OVN")
		}, want: []string{"AddressNotServed Refuse"}, says: []string{"would not start again", "in no subnet of Kube-OVN", "--replace --ip ADDRESS"}},
		"the record has the row's address": {rule: RecordWins, change: func(f *Facts) {
			held(true, "198.51.100.20")(f)
			iface(f).Want = nil
		}},
		"the record has the wanted address": {rule: RecordWins, change: held(true, "198.51.100.20")},
		"the record has the other family":   {rule: RecordWins, change: held(true, "2001:db8::77")},
		"the record follows the annotation": {rule: RecordWins, change: held(false, "198.51.100.77")},
		"the record can't be read":          {rule: RecordWins, change: func(f *Facts) { iface(f).RecordsErr = errors.New("forbidden") }, want: []string{"CNIRecordUnread Unverified"}, says: []string{"forbidden"}},
		"C50 somebody has the address": {rule: InUse, change: func(f *Facts) {
			iface(f).Uses = []Use{{ips("198.51.100.20")[0], "pod kube-system/x"}, {ips("198.51.100.20")[0], "ipamblock y"}}
		}, want: []string{"AddressInUseByOther Refuse", "AddressInUseByOther Refuse"}, says: []string{"pod kube-system/x", "ipamblock y"}},
		"nobody has the address": {rule: InUse},
	} {
		t.Run(name, func(t *testing.T) { run1(t, c) })
	}
}

func TestGuestRules(t *testing.T) {
	cloudInit := func(data string) func(*Facts) {
		return func(f *Facts) {
			f.View.VM.Spec.Template.Spec.Volumes = []kubevirtv1.Volume{{Name: "ci", VolumeSource: kubevirtv1.VolumeSource{CloudInitNoCloud: &kubevirtv1.CloudInitNoCloudSource{NetworkData: data}}}}
		}
	}
	const static = "version: 1\nconfig: [{type: physical, name: eth0, subnets: [{type: static, address: 198.51.100.26/24}]}]"
	const six = "version: 2\nethernets: {eth0: {addresses: ['2001:db8::26/64']}}"
	const other = "version: 2\nethernets: {eth1: {match: {macaddress: '02:00:00:00:00:99'}, addresses: [203.0.113.26/24]}}"
	second := func(f *Facts) {
		spec := &f.View.VM.Spec.Template.Spec
		spec.Networks = append(spec.Networks, kubevirtv1.Network{Name: "lan", NetworkSource: kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: "lan"}}})
		spec.Domain.Devices.Interfaces = append(spec.Domain.Devices.Interfaces, kubevirtv1.Interface{Name: "lan"})
	}
	masquerade := func(f *Facts) { iface(f).Binding = machine.Masquerade }
	for name, c := range map[string]check{
		"the MAC is left to chance": {rule: MACNotPinned, change: func(f *Facts) { iface(f).MAC = "" }, want: []string{"MACNotPinned Warn"}, says: []string{"set macAddress on the interface"}},
		"the plugin keeps the MAC":  {rule: MACNotPinned, change: func(f *Facts) { iface(f).MAC, iface(f).Capabilities.MAC.Answer = "", profile.Yes }},
		"the plugin keeps the MAC of a stopped machine": {rule: MACNotPinned, change: func(f *Facts) {
			stop(f)
			iface(f).MAC, iface(f).Capabilities.MAC.Answer, iface(f).Want = "", profile.Yes, ips("198.51.100.77")
		}},
		"the plugin keeps the MAC of the old address": {rule: MACNotPinned, change: func(f *Facts) {
			iface(f).MAC, iface(f).Capabilities.MAC.Answer, iface(f).Want = "", profile.Yes, ips("198.51.100.77")
			f.View.VMI.Status.Interfaces = []kubevirtv1.VirtualMachineInstanceNetworkInterface{{Name: iface(f).Name, IP: "198.51.100.20"}}
		}, want: []string{"MACNotPinned Warn"}, says: []string{"with the new address"}},
		"the MAC of an implicit interface": {rule: MACNotPinned, change: func(f *Facts) { iface(f).MAC, iface(f).Implicit = "", true }, want: []string{"MACNotPinned Warn"}, says: []string{"declare the interface"}},
		"the MAC behind a masquerade":      {rule: MACNotPinned, change: func(f *Facts) { iface(f).MAC = ""; masquerade(f) }},
		"the MAC is pinned":                {rule: MACNotPinned},
		"C17 IPv6 on bridge":               {rule: IPv6NotDelivered, change: func(f *Facts) { iface(f).Want = ips("2001:db8::20") }, want: []string{"IPv6NotDelivered Warn"}},
		"C17 both families on bridge":      {rule: IPv6NotDelivered, change: func(f *Facts) { iface(f).Families = 2 }, want: []string{"IPv6NotDelivered Warn"}},
		"IPv4 on bridge":                   {rule: IPv6NotDelivered},
		"IPv6 behind a masquerade":         {rule: IPv6NotDelivered, change: func(f *Facts) { iface(f).Want = ips("2001:db8::20"); masquerade(f) }},
		"C24 masquerade":                   {rule: BehindNAT, change: masquerade, want: []string{"GuestBehindNAT Info"}, says: []string{"the guest sees 10.0.2.2"}},
		"C24 masquerade with a chosen network": {rule: BehindNAT, change: func(f *Facts) {
			masquerade(f)
			f.View.VM.Spec.Template.Spec.Networks[0].Pod.VMNetworkCIDR = "192.0.2.0/24"
		}, want: []string{"GuestBehindNAT Info"}, says: []string{"the guest sees 192.0.2.2"}},
		"no masquerade":                       {rule: BehindNAT},
		"C09 the guest has another":           {rule: GuestStatic, change: cloudInit(static), want: []string{"GuestStaticAddress Refuse"}, says: []string{"gives the guest 198.51.100.26 (device eth0), and 198.51.100.20 is asked for", "--ip 198.51.100.26"}},
		"C09 the guest has one, any is asked": {rule: GuestStatic, change: func(f *Facts) { cloudInit(static)(f); iface(f).Want, iface(f).Rows = nil, nil }, want: []string{"GuestStaticAddress Refuse"}, says: []string{"chosen automatically"}},
		"C09 the guest has the same":          {rule: GuestStatic, change: func(f *Facts) { cloudInit(static)(f); iface(f).Want = ips("198.51.100.26") }},
		"C09 the guest has the reserved one": {rule: GuestStatic, change: func(f *Facts) {
			cloudInit(static)(f)
			iface(f).Want, iface(f).Rows = nil, []ledger.Entry{row("198.51.100.26", ledger.Reserved)}
		}},
		"the guest has one of the other family": {rule: GuestStatic, change: cloudInit(six)},
		"the guest's is another interface":      {rule: GuestStatic, change: func(f *Facts) { second(f); cloudInit(other)(f) }},
		"C09 the guest's by MAC": {rule: GuestStatic, change: func(f *Facts) {
			second(f)
			cloudInit(other)(f)
			iface(f).MAC = "02:00:00:00:00:99"
		}, want: []string{"GuestStaticAddress Refuse"}},
		"behind a masquerade it is the inner one": {rule: GuestStatic, change: func(f *Facts) { cloudInit(static)(f); masquerade(f) }},
		"no cloud-init":            {rule: GuestStatic},
		"cloud-init can't be seen": {rule: GuestStatic, change: cloudInit("{"), want: []string{"GuestConfigHidden Info"}, says: []string{"volume ci can't be seen"}},
	} {
		t.Run(name, func(t *testing.T) { run1(t, c) })
	}
}

func TestStateRules(t *testing.T) {
	strategy := func(s kubevirtv1.VirtualMachineRunStrategy) func(*Facts) {
		return func(f *Facts) { f.View.VM.Spec.RunStrategy = &s }
	}
	phase := func(p kubevirtv1.VirtualMachineInstancePhase) func(*Facts) {
		return func(f *Facts) { f.View.VMI.Status.Phase = p }
	}
	for name, c := range map[string]check{
		"C31 restart of a stopped machine":   {rule: NotStarted, change: stop, want: []string{"NotRunning Refuse"}, says: []string{"virtctl start db-1 -n tenant-a"}},
		"restart of an ended instance":       {rule: NotStarted, change: phase(kubevirtv1.Succeeded), want: []string{"NotRunning Refuse"}},
		"restart of one that hangs":          {rule: NotStarted, change: phase(kubevirtv1.Scheduling)},
		"restart of one that runs":           {rule: NotStarted},
		"migration of a stopped machine":     {rule: NotRunning, change: stop, want: []string{"NotRunning Refuse"}},
		"migration of one that starts":       {rule: NotRunning, change: phase(kubevirtv1.Scheduling), want: []string{"NotRunning Refuse"}, says: []string{"is Scheduling"}},
		"migration of one that runs":         {rule: NotRunning},
		"C31 strategy Once":                  {rule: RunStrategy, change: strategy(kubevirtv1.RunStrategyOnce), want: []string{"RestartNotSupported Refuse"}, says: []string{"virtctl stop db-1", "virtctl start db-1"}},
		"C31 strategy Halted, still running": {rule: RunStrategy, change: strategy(kubevirtv1.RunStrategyHalted), want: []string{"RestartNotSupported Refuse"}},
		"strategy WaitAsReceiver":            {rule: RunStrategy, change: strategy(kubevirtv1.RunStrategyWaitAsReceiver), want: []string{"RestartNotSupported Refuse"}},
		"spec.running false":                 {rule: RunStrategy, change: func(f *Facts) { f.View.VM.Spec.RunStrategy, f.View.VM.Spec.Running = nil, new(false) }, want: []string{"RestartNotSupported Refuse"}},
		"both fields":                        {rule: RunStrategy, change: func(f *Facts) { f.View.VM.Spec.Running = new(true) }, want: []string{"RestartNotSupported Refuse"}},
		"spec.running true":                  {rule: RunStrategy, change: func(f *Facts) { f.View.VM.Spec.RunStrategy, f.View.VM.Spec.Running = nil, new(true) }},
		"strategy Always":                    {rule: RunStrategy},
		"strategy Manual":                    {rule: RunStrategy, change: strategy(kubevirtv1.RunStrategyManual)},
		"strategy RerunOnFailure":            {rule: RunStrategy, change: strategy(kubevirtv1.RunStrategyRerunOnFailure)},
		"strategy Halted, stopped":           {rule: RunStrategy, change: func(f *Facts) { strategy(kubevirtv1.RunStrategyHalted)(f); stop(f) }},
		"a state change": {rule: StateChange, change: func(f *Facts) {
			f.View.VM.Status.StateChangeRequests = []kubevirtv1.VirtualMachineStateChangeRequest{{Action: kubevirtv1.StopRequest}, {Action: kubevirtv1.StartRequest}}
		}, want: []string{"StateChangeInFlight Refuse"}, says: []string{"Stop, Start"}},
		"stopping":        {rule: StateChange, change: func(f *Facts) { f.View.VMI.DeletionTimestamp = &metav1.Time{Time: now} }, want: []string{"StateChangeInFlight Refuse"}},
		"being deleted":   {rule: StateChange, change: func(f *Facts) { f.View.VM.DeletionTimestamp = &metav1.Time{Time: now} }, want: []string{"StateChangeInFlight Refuse"}},
		"no state change": {rule: StateChange},
		"stopped":         {rule: StateChange, change: stop},
		"paused": {rule: PausedGuest, change: func(f *Facts) {
			f.View.VMI.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{Type: kubevirtv1.VirtualMachineInstancePaused, Status: corev1.ConditionTrue}}
		}, want: []string{"Paused Warn"}},
		"not paused": {rule: PausedGuest, change: func(f *Facts) {
			f.View.VMI.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{Type: kubevirtv1.VirtualMachineInstancePaused, Status: corev1.ConditionFalse}}
		}},
		"a migration": {rule: MigrationInFlight, change: func(f *Facts) {
			f.View.Migrations = []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationScheduling)}
		}, want: []string{"MigrationInFlight Refuse"}, says: []string{"move-m1 is under way (Scheduling)"}},
		"a migration without its object": {rule: MigrationInFlight, change: func(f *Facts) {
			f.View.VMI.Status.MigrationState = &kubevirtv1.VirtualMachineInstanceMigrationState{SourceNode: "n1", TargetNode: "n2"}
		}, want: []string{"MigrationInFlight Refuse"}, says: []string{"from n1 to n2"}},
		"migrations of the past": {rule: MigrationInFlight, change: func(f *Facts) {
			f.View.Migrations = []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationSucceeded), migration("m2", kubevirtv1.MigrationFailed)}
			f.View.VMI.Status.MigrationState = &kubevirtv1.VirtualMachineInstanceMigrationState{Completed: true}
		}},
		"C43 evacuation": {rule: Evacuation, change: func(f *Facts) { f.View.VMI.Status.EvacuationNodeName = "n1" }, want: []string{"EvacuationPending Refuse"}, says: []string{"node n1"}},
		"no evacuation":  {rule: Evacuation},
		"a stray target": {rule: StrayTarget, change: func(f *Facts) {
			f.View.Pods = append(f.View.Pods, pod("bbbbb", "n2", "m1"))
			f.View.Migrations = []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationFailed)}
		}, want: []string{"StrayMigrationTarget Refuse"}, says: []string{"pod bbbbb on node n2", "kubectl delete pod bbbbb -n tenant-a"}},
		"a target, no stray": {rule: StrayTarget, change: func(f *Facts) {
			f.View.Pods = append(f.View.Pods, pod("bbbbb", "n2", "m1"))
			f.View.Migrations = []kubevirtv1.VirtualMachineInstanceMigration{migration("m1", kubevirtv1.MigrationRunning)}
		}},
	} {
		t.Run(name, func(t *testing.T) { run1(t, c) })
	}
}

func TestTemplateRules(t *testing.T) {
	template := func(f *Facts) map[string]string { return f.View.VM.Spec.Template.ObjectMeta.Annotations }
	change := func(f *Facts) { // moved from .20 to .30, not restarted
		template(f)[ipKey] = "198.51.100.30"
		iface(f).Annotations = map[string]string{ipKey: "198.51.100.30"}
		iface(f).Rows = []ledger.Entry{row("198.51.100.30", ledger.Reserved), row("198.51.100.20", ledger.Leaving)}
	}
	for name, c := range map[string]check{
		"the manifest was applied again":        {rule: TemplateMissing, change: func(f *Facts) { delete(template(f), ipKey) }, want: []string{"TemplateMissing Refuse"}, says: []string{"198.51.100.20 is reserved", ipKey, "kubectl vmip reserve db-1"}},
		"the template has another value":        {rule: TemplateMissing, change: func(f *Facts) { template(f)[ipKey] = "198.51.100.99" }, want: []string{"TemplateMissing Refuse"}},
		"the record of them was lost with them": {rule: TemplateMissing, change: func(f *Facts) { iface(f).Annotations, iface(f).Next = nil, nil }, want: []string{"TemplateMissing Refuse"}, says: []string{"198.51.100.20 is reserved, and the template asks for no address"}},
		"another annotation beats ours":         {rule: TemplateMissing, change: func(f *Facts) { iface(f).Next = ips("198.51.100.77") }, want: []string{"TemplateMissing Refuse"}, says: []string{"the template asks for 198.51.100.77"}},
		"the template's is damaged": {rule: TemplateMissing, change: func(f *Facts) {
			iface(f).Annotations, iface(f).Next, iface(f).NextErr = nil, nil, errors.New("nonsense")
		}, want: []string{"MalformedAnnotation Refuse"}},
		"a static network needs none":      {rule: TemplateMissing, change: func(f *Facts) { iface(f).Annotations, iface(f).Next, iface(f).Keys = nil, nil, nil }},
		"a record that was lost, not more": {rule: TemplateMissing, change: func(f *Facts) { iface(f).Annotations = nil }},
		"the template has it":              {rule: TemplateMissing},
		"nothing is reserved": {rule: TemplateMissing, change: func(f *Facts) {
			delete(template(f), ipKey)
			iface(f).Rows = []ledger.Entry{row("198.51.100.20", ledger.Held)}
		}},
		"a change waits for a restart":      {rule: RestartPending, change: change, want: []string{"RestartPending Warn"}, says: []string{`the template has ` + ipKey + ` "198.51.100.30", the running instance has "198.51.100.20"`}},
		"a first reservation waits":         {rule: RestartPending, change: func(f *Facts) { delete(f.View.VMI.Annotations, ipKey) }, want: []string{"RestartPending Warn"}, says: []string{"the running instance has none"}},
		"nothing waits":                     {rule: RestartPending},
		"a stopped machine waits for start": {rule: RestartPending, change: func(f *Facts) { change(f); stop(f) }},
		"the template was lost, not newer":  {rule: RestartPending, change: func(f *Facts) { delete(template(f), ipKey); delete(f.View.VMI.Annotations, ipKey) }},

		"C34 a change waits, the old address is held": {rule: PendingChange, change: change, want: []string{"RestartPending Warn"}, says: []string{"migrating keeps 198.51.100.20: the change to 198.51.100.30 needs a restart"}},
		"C34 a change waits, the old one is not held": {rule: PendingChange, change: func(f *Facts) { change(f); iface(f).Rows = iface(f).Rows[:1] }, want: []string{"RestartPending Refuse"}, says: []string{"asks for 198.51.100.20, and the machine's address is 198.51.100.30"}},
		"C34 the instance has no key":                 {rule: PendingChange, change: func(f *Facts) { iface(f).Asked = nil }, want: []string{"RestartPending Refuse"}, says: []string{"has no " + ipKey, "kubectl vmip restart db-1 -n tenant-a"}},
		"the instance's key is damaged":               {rule: PendingChange, change: func(f *Facts) { iface(f).Asked, iface(f).AskedErr = nil, errors.New("annotation x is nonsense") }, want: []string{"MalformedAnnotation Refuse"}},
		"a second family waits": {rule: PendingChange, change: func(f *Facts) {
			iface(f).Rows = append(iface(f).Rows, row("2001:db8::20", ledger.Reserved))
		}, want: []string{"RestartPending Refuse"}},
		"the instance asks for its address": {rule: PendingChange},
		"both families, in another order": {rule: PendingChange, change: func(f *Facts) {
			iface(f).Rows = append(iface(f).Rows, row("2001:db8::20", ledger.Reserved))
			iface(f).Asked = ips("2001:db8::20", "198.51.100.20")
		}},
		"a network without annotations":     {rule: PendingChange, change: func(f *Facts) { iface(f).Keys, iface(f).Asked = nil, nil }},
		"no reservation, no pending change": {rule: PendingChange, change: func(f *Facts) { iface(f).Rows, iface(f).Asked = nil, nil }},
		"a pinned MAC is no pending change": {rule: PendingChange, change: func(f *Facts) {
			f.View.VM.Spec.Template.Spec.Domain.Devices.Interfaces[0].MacAddress = "02:00:00:00:00:77"
		}},
		"no pending change without instance": {rule: PendingChange, change: stop},
	} {
		t.Run(name, func(t *testing.T) { run1(t, c) })
	}
}

func TestMigrationRules(t *testing.T) {
	condition := func(s corev1.ConditionStatus, reason, message string) func(*Facts) {
		return func(f *Facts) {
			f.View.VMI.Status.Conditions = []kubevirtv1.VirtualMachineInstanceCondition{{Type: kubevirtv1.VirtualMachineInstanceIsMigratable, Status: s, Reason: reason, Message: message}}
		}
	}
	secondaryOnly := func(f *Facts) {
		for _, spec := range []*kubevirtv1.VirtualMachineInstanceSpec{&f.View.VM.Spec.Template.Spec, &f.View.VMI.Spec} {
			spec.Networks[0].NetworkSource = kubevirtv1.NetworkSource{Multus: &kubevirtv1.MultusNetwork{NetworkName: "lan"}}
		}
	}
	without := func(f *Facts) { // opted in nowhere
		delete(f.View.VM.Spec.Template.ObjectMeta.Annotations, bridgeOptIn)
		delete(f.View.VMI.Annotations, bridgeOptIn)
	}
	onVM := func(f *Facts) { without(f); f.View.VM.Annotations = map[string]string{bridgeOptIn: "true"} }
	masquerade := func(f *Facts) {
		f.View.VMI.Spec.Domain.Devices.Interfaces[0].InterfaceBindingMethod = kubevirtv1.InterfaceBindingMethod{Masquerade: &kubevirtv1.InterfaceMasquerade{}}
	}
	for name, c := range map[string]check{
		"C32 KubeVirt says no":                    {rule: LiveMigratable, change: condition(corev1.ConditionFalse, "InterfaceNotLiveMigratable", "cannot migrate VMI which does not use masquerade"), want: []string{"MigrationBlocked Refuse"}, says: []string{"InterfaceNotLiveMigratable: cannot migrate VMI which does not use masquerade", "kubectl vmip profile db-1"}},
		"C40 KubeVirt says no for a disk":         {rule: LiveMigratable, change: condition(corev1.ConditionFalse, "DisksNotLiveMigratable", "cannot migrate VMI: PVC is not shared"), want: []string{"MigrationBlocked Refuse"}, says: []string{"PVC is not shared"}},
		"KubeVirt has not said":                   {rule: LiveMigratable, change: func(f *Facts) { f.View.VMI.Status.Conditions = nil }, want: []string{"MigrationBlocked Unverified"}},
		"KubeVirt says yes":                       {rule: LiveMigratable},
		"C32 secondary networks only":             {rule: LiveMigratable, change: secondaryOnly},
		"C33 opted in on the machine":             {rule: BridgeOptIn, change: onVM, want: []string{"MigrationBlocked Refuse"}, says: []string{"own metadata", "spec.template.metadata.annotations"}},
		"C33 opted in on a stopped machine":       {rule: BridgeOptIn, change: func(f *Facts) { onVM(f); stop(f) }, want: []string{"MigrationBlocked Refuse"}},
		"C33 opted in in the template only":       {rule: BridgeOptIn, change: func(f *Facts) { delete(f.View.VMI.Annotations, bridgeOptIn) }, want: []string{"MigrationBlocked Refuse"}, says: []string{"takes effect at a restart", "kubectl vmip restart db-1"}},
		"C33 opted out by value":                  {rule: BridgeOptIn, change: func(f *Facts) { f.View.VMI.Annotations[bridgeOptIn] = "false" }, want: []string{"MigrationBlocked Warn"}, says: []string{`is "false"`}},
		"C33 opted out by value, stopped":         {rule: BridgeOptIn, change: func(f *Facts) { f.View.VM.Spec.Template.ObjectMeta.Annotations[bridgeOptIn] = "False"; stop(f) }, want: []string{"MigrationBlocked Warn"}},
		"opted in":                                {rule: BridgeOptIn},
		"opted in by value":                       {rule: BridgeOptIn, change: func(f *Facts) { f.View.VMI.Annotations[bridgeOptIn] = "true" }},
		"opted in where it counts and besides":    {rule: BridgeOptIn, change: func(f *Facts) { f.View.VM.Annotations = map[string]string{bridgeOptIn: ""} }},
		"opted in in the template, stopped":       {rule: BridgeOptIn, change: stop},
		"opted in nowhere":                        {rule: BridgeOptIn, change: without},
		"C32 misplaced, secondary networks":       {rule: BridgeOptIn, change: func(f *Facts) { onVM(f); secondaryOnly(f) }},
		"misplaced, the instance's is not bridge": {rule: BridgeOptIn, change: func(f *Facts) { onVM(f); masquerade(f) }},
	} {
		t.Run(name, func(t *testing.T) { run1(t, c) })
	}
}

func TestNodeRules(t *testing.T) {
	lost := func(f *Facts) { f.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown }
	n2 := func(change func(*corev1.Node)) func(*Facts) { return func(f *Facts) { change(&f.Nodes[1]) } }
	affinity := func(op corev1.NodeSelectorOperator, values ...string) func(*Facts) {
		return func(f *Facts) {
			f.View.VMI.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: op, Values: values}}}},
			}}}
		}
	}
	taint := func(effect corev1.TaintEffect) func(*Facts) {
		return n2(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "db", Effect: effect}} })
	}
	for name, c := range map[string]check{
		"C29 the node is cut off": {rule: NodeUnreachable, change: lost, want: []string{"NodeUnreachable Refuse"}, says: []string{"node n1 is unreachable: the machine may still be running there", "--node-fenced"}},
		"C29 the node is gone":    {rule: NodeUnreachable, change: func(f *Facts) { f.Nodes = f.Nodes[1:] }, want: []string{"NodeUnreachable Refuse"}, says: []string{"does not exist any more"}},
		"C29 a pod's node is cut off": {rule: NodeUnreachable, change: func(f *Facts) {
			f.View.Pods = append(f.View.Pods, pod("old", "n2", ""))
			f.Nodes[1].Status.Conditions[0].Status = corev1.ConditionUnknown
		}, want: []string{"NodeUnreachable Refuse"}},
		"C29 out of service":            {rule: NodeUnreachable, change: func(f *Facts) { lost(f); f.Nodes[0].Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService}} }},
		"C29 fenced by the user's word": {rule: NodeUnreachable, change: func(f *Facts) { lost(f); f.NodeFenced = true }},
		"another node is cut off":       {rule: NodeUnreachable, change: n2(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })},
		"a finished pod's node is": {rule: NodeUnreachable, change: func(f *Facts) {
			p := pod("old", "n3", "")
			p.Status.Phase = corev1.PodSucceeded
			f.View.Pods = append(f.View.Pods, p)
		}},
		"the node reports to be unready": {rule: NodeUnreachable, change: func(f *Facts) { f.Nodes[0].Status.Conditions[0].Status = corev1.ConditionFalse }},
		"a stopped machine":              {rule: NodeUnreachable, change: func(f *Facts) { stop(f); lost(f) }},
		"nodes can't be read":            {rule: NodeUnreachable, change: func(f *Facts) { f.Nodes, f.NodesErr = nil, errors.New("forbidden") }, want: []string{"NodeUnreachable Unverified"}},
		"nodes were not read":            {rule: NodeUnreachable, change: func(f *Facts) { f.Nodes = nil }},

		"C40 one node only":            {rule: NoTarget, change: func(f *Facts) { f.Nodes = f.Nodes[:1] }, want: []string{"NoMigrationTarget Refuse"}, says: []string{"n1 is where it runs"}},
		"C40 bound to its host":        {rule: NoTarget, change: func(f *Facts) { f.View.VMI.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n1"} }, want: []string{"NoMigrationTarget Refuse"}, says: []string{"n2 lacks label kubernetes.io/hostname=n1"}},
		"C40 bound by affinity":        {rule: NoTarget, change: affinity(corev1.NodeSelectorOpIn, "n1"), want: []string{"NoMigrationTarget Refuse"}, says: []string{"node affinity"}},
		"affinity that another meets":  {rule: NoTarget, change: affinity(corev1.NodeSelectorOpNotIn, "n1")},
		"the other is cordoned":        {rule: NoTarget, change: n2(func(n *corev1.Node) { n.Spec.Unschedulable = true }), want: []string{"NoMigrationTarget Refuse"}, says: []string{"n2 is cordoned"}},
		"the other is not ready":       {rule: NoTarget, change: n2(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }), want: []string{"NoMigrationTarget Refuse"}},
		"the other has no KubeVirt":    {rule: NoTarget, change: n2(func(n *corev1.Node) { n.Labels[kubevirtv1.NodeSchedulable] = "false" }), want: []string{"NoMigrationTarget Refuse"}},
		"the other is tainted":         {rule: NoTarget, change: taint(corev1.TaintEffectNoSchedule), want: []string{"NoMigrationTarget Refuse"}, says: []string{"has taint dedicated"}},
		"a taint that is a preference": {rule: NoTarget, change: taint(corev1.TaintEffectPreferNoSchedule)},
		"a taint that is tolerated": {rule: NoTarget, change: func(f *Facts) {
			taint(corev1.TaintEffectNoSchedule)(f)
			f.View.VMI.Spec.Tolerations = []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}
		}},
		"its own node is cordoned": {rule: NoTarget, change: func(f *Facts) { f.Nodes[0].Spec.Unschedulable = true }},
		"another node can":         {rule: NoTarget},
		"the node that is meant":   {rule: NoTarget, change: func(f *Facts) { f.ToNode = "n2" }},
		"the node that is meant can't": {rule: NoTarget, change: func(f *Facts) {
			f.ToNode = "n2"
			f.Nodes[1].Spec.Unschedulable = true
			f.Nodes = append(f.Nodes, node("n3"))
		}, want: []string{"NoMigrationTarget Refuse"}, says: []string{"node n2 can't take the machine: it is cordoned"}},
		"to where it runs":             {rule: NoTarget, change: func(f *Facts) { f.ToNode = "n1" }, want: []string{"NoMigrationTarget Refuse"}, says: []string{"it is where it runs"}},
		"to a node that is none":       {rule: NoTarget, change: func(f *Facts) { f.ToNode = "n9" }, want: []string{"NoMigrationTarget Refuse"}, says: []string{"node n9 does not exist"}},
		"targets unknown":              {rule: NoTarget, change: func(f *Facts) { f.Nodes, f.NodesErr = nil, errors.New("forbidden") }, want: []string{"NoMigrationTarget Unverified"}},
		"no targets for a stopped one": {rule: NoTarget, change: func(f *Facts) { stop(f); f.Nodes = nil }},
	} {
		t.Run(name, func(t *testing.T) { run1(t, c) })
	}
}
