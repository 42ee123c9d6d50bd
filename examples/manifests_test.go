package examples

import (
	"bytes"
	"net/netip"
	"net/url"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// manifests are the objects of one kustomization.
type manifests struct {
	set       appsv1.DaemonSet
	service   corev1.Service
	policy    networkingv1.NetworkPolicy
	account   corev1.ServiceAccount
	namespace corev1.Namespace
	config    *corev1.ConfigMap // nil if the kustomization has none
}

// render builds a kustomization. A field that is unknown to Kubernetes fails the test.
func render(t *testing.T, dir string) *manifests {
	t.Helper()
	cmd := exec.Command("kubectl", "kustomize", dir)
	if _, err := exec.LookPath("kubectl"); err != nil {
		need.Programs(t, "kustomize")
		cmd = need.Go(t.Context(), "run", need.Kustomize, "build", dir)
	}
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil || problems.Len() > 0 {
		t.Fatalf("%v: %v\n%s", cmd, err, &problems)
	}
	m := &manifests{}
	for _, document := range strings.Split(string(out), "\n---\n") {
		m.decode(t, []byte(document))
	}
	return m
}

func (m *manifests) decode(t *testing.T, document []byte) {
	t.Helper()
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
	var kind struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(data, &kind); err != nil {
		t.Fatal(err)
	}
	var into any
	switch kind.APIVersion + " " + kind.Kind {
	case "apps/v1 DaemonSet":
		into = &m.set
	case "v1 Service":
		into = &m.service
	case "networking.k8s.io/v1 NetworkPolicy":
		into = &m.policy
	case "v1 ServiceAccount":
		into = &m.account
	case "v1 Namespace":
		into = &m.namespace
	case "v1 ConfigMap":
		m.config = &corev1.ConfigMap{}
		into = m.config
	default:
		t.Fatalf("unexpected %v", kind)
	}
	if mistakes, err := json.UnmarshalStrict(data, into); err != nil || len(mistakes) > 0 {
		t.Errorf("%v: %v %v", kind, mistakes, err)
	}
}

// check finds errors that an API server accepts and that fail at run time.
func (m *manifests) check(t *testing.T) {
	t.Helper()
	pod := m.set.Spec.Template
	for name, selector := range map[string]map[string]string{"DaemonSet": m.set.Spec.Selector.MatchLabels, "Service": m.service.Spec.Selector} {
		for key, value := range selector {
			if pod.Labels[key] != value {
				t.Errorf("the %s selects %s=%s, a label that the pods lack", name, key, value)
			}
		}
	}
	if m.set.Namespace != m.namespace.Name || m.account.Name != pod.Spec.ServiceAccountName || m.service.Spec.ClusterIP != "None" {
		t.Errorf("namespace %q, account %q, clusterIP of the service %q", m.set.Namespace, pod.Spec.ServiceAccountName, m.service.Spec.ClusterIP)
	}
	if token := pod.Spec.AutomountServiceAccountToken; token == nil || *token || *m.account.AutomountServiceAccountToken {
		t.Error("the pods get a token for the API server")
	}
	var mounted []string
	for _, c := range pod.Spec.Containers {
		checkHardened(t, c)
		for _, v := range c.VolumeMounts {
			mounted = append(mounted, v.Name)
			if v.SubPath != "" || v.SubPathExpr != "" {
				t.Errorf("%s is mounted with a subPath, which a kubelet never updates", v.Name)
			}
		}
	}
	for _, v := range pod.Spec.Volumes {
		if !slices.Contains(mounted, v.Name) {
			t.Errorf("the volume %s is not mounted", v.Name)
		}
		if v.ConfigMap != nil && (m.config == nil || v.ConfigMap.Name != m.config.Name) {
			t.Errorf("the volume %s refers to a ConfigMap that does not exist", v.Name)
		}
		mounted = slices.DeleteFunc(mounted, func(name string) bool { return name == v.Name })
	}
	if len(mounted) > 0 {
		t.Errorf("mounts without a volume: %q", mounted)
	}
}

func checkHardened(t *testing.T, c corev1.Container) {
	t.Helper()
	s := c.SecurityContext
	if s.Privileged != nil || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
		len(s.Capabilities.Add) > 0 || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("%s has unnecessary rights: %+v", c.Name, s)
	}
	if c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero() {
		t.Errorf("%s lacks requests or a limit: %+v", c.Name, c.Resources)
	}
	if name, tag, _ := strings.Cut(path.Base(c.Image), ":"); tag == "" || tag == "latest" {
		t.Errorf("the image of %s has no version: %s", name, c.Image)
	}
}

// checkAddresses compares the addresses of the nodes with the ports and networks of the policy.
func (m *manifests) checkAddresses(t *testing.T, nodes []node) {
	t.Helper()
	port := m.manager(t).Ports[0]
	in, out := m.policy.Spec.Ingress[0], m.policy.Spec.Egress[0]
	if in.Ports[0].Port.String() != port.Name || out.Ports[0].Port.String() != strconv.Itoa(int(port.HostPort)) {
		t.Errorf("the policy allows port %v in and %v out; the port is %+v", in.Ports[0].Port, out.Ports[0].Port, port)
	}
	for _, n := range nodes {
		u, err := url.Parse(n.Address)
		if err != nil {
			t.Fatal(err)
		}
		if u.Port() != strconv.Itoa(int(port.HostPort)) {
			t.Errorf("%s does not use the hostPort %d", n.Address, port.HostPort)
		}
		for _, peer := range []networkingv1.NetworkPolicyPeer{in.From[0], out.To[0]} {
			if !netip.MustParsePrefix(peer.IPBlock.CIDR).Contains(netip.MustParseAddr(u.Hostname())) {
				t.Errorf("%s is not in %s", n.Address, peer.IPBlock.CIDR)
			}
		}
	}
}

// manager returns the container with our program.
func (m *manifests) manager(t *testing.T) corev1.Container {
	t.Helper()
	for _, c := range m.set.Spec.Template.Spec.Containers {
		if c.Name == "manager" {
			return c
		}
	}
	t.Fatal("there is no container named manager")
	return corev1.Container{}
}
