// Package kubernetes_test tests the manifests: kustomize builds them, and each is decoded strictly into
// Kubernetes' own type. A resource of CloudNativePG has no type here, and is only named. The
// package is in the module of the examples, so that nothing of Kubernetes is among what payonce
// depends on.
package kubernetes_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/payonce/payonce/internal/testrun"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const manifests = "../../deploy/kubernetes"

// types makes a value of each kind.
var types = map[string]func() any{
	"apps/v1 Deployment":                     func() any { return &appsv1.Deployment{} },
	"autoscaling/v2 HorizontalPodAutoscaler": func() any { return &autoscalingv2.HorizontalPodAutoscaler{} },
	"batch/v1 Job":                           func() any { return &batchv1.Job{} },
	"networking.k8s.io/v1 NetworkPolicy":     func() any { return &networkingv1.NetworkPolicy{} },
	"policy/v1 PodDisruptionBudget":          func() any { return &policyv1.PodDisruptionBudget{} },
	"v1 ConfigMap":                           func() any { return &corev1.ConfigMap{} },
	"v1 Service":                             func() any { return &corev1.Service{} },
}

// manifest is a resource that kustomize has built.
type manifest struct {
	kind, name, text string
	value            any // nil where there is no type
}

func build(t *testing.T, folder string) (all []manifest) {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	testrun.Must(t, err)
	for _, r := range built.Resources() {
		text, err := r.AsYAML()
		testrun.Must(t, err)
		m := manifest{kind: strings.TrimSpace(r.GetApiVersion() + " " + r.GetKind()), name: r.GetName(), text: string(text)}
		if newValue := types[m.kind]; newValue != nil {
			m.value = newValue()
			if err := yaml.UnmarshalStrict(text, m.value); err != nil {
				t.Errorf("%s %s: %v", m.kind, m.name, err)
			}
		}
		all = append(all, m)
	}
	return all
}

func TestManifests_areOfKubernetesTypes(t *testing.T) {
	t.Parallel()
	for folder, own := range map[string][]string{manifests + "/base": nil, manifests + "/cloudnative-pg": {"postgresql.cnpg.io/v1 Cluster"}} {
		seen := make(map[string]bool)
		for _, m := range build(t, folder) {
			seen[m.kind] = true
			if m.value == nil && !slices.Contains(own, m.kind) {
				t.Errorf("%s: %s has no type", folder, m.kind)
			}
		}
		if len(seen) != len(types)+len(own) {
			t.Errorf("%s has the kinds %v", folder, seen)
		}
	}
}

// pods are the pods of the manifests, by their names.
func pods(t *testing.T) map[string]corev1.PodTemplateSpec {
	t.Helper()
	found := make(map[string]corev1.PodTemplateSpec)
	for _, m := range build(t, manifests+"/base") {
		switch value := m.value.(type) {
		case *appsv1.Deployment:
			found[m.name] = value.Spec.Template
		case *batchv1.Job:
			found[m.name] = value.Spec.Template
		}
	}
	if len(found) != 3 {
		t.Fatalf("there are %d pods", len(found))
	}
	return found
}

func TestPods_areConfined(t *testing.T) {
	t.Parallel()
	for name, pod := range pods(t) {
		if s := pod.Spec.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || *s.RunAsUser == 0 ||
			s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: its user is %+v", name, s)
		}
		if token := pod.Spec.AutomountServiceAccountToken; token == nil || *token {
			t.Errorf("%s has a token of the cluster", name)
		}
		for _, c := range pod.Spec.Containers {
			s := c.SecurityContext
			if s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation ||
				s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s: %+v", name, s)
			}
			if memory := c.Resources.Limits.Memory(); memory.IsZero() || memory.Value() > 256<<20 {
				t.Errorf("%s: its memory is %v", name, memory)
			}
		}
	}
}

// TestPods_setSettingsOfTheirPrograms: each variable is a setting of the program, or names the
// file of a secret that is mounted. No secret is in a manifest.
func TestPods_setSettingsOfTheirPrograms(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/settings.md")
	testrun.Must(t, err)
	sections := strings.Split(string(text), "\n## ")[1:]
	for name, pod := range pods(t) {
		c := pod.Spec.Containers[0]
		for _, variable := range c.Env {
			setting, isFile := strings.CutSuffix(variable.Name, "_FILE")
			if isFile != strings.HasPrefix(variable.Value, c.VolumeMounts[0].MountPath+"/") {
				t.Errorf("%s: %s is %s", name, variable.Name, variable.Value)
			}
			if !slices.ContainsFunc(sections, func(section string) bool {
				title, rows, _ := strings.Cut(section, "\n")
				_, row, found := strings.Cut(rows, "\n| `"+setting+"` |")
				return strings.Contains(title, c.Args[0]) && found && isFile == strings.HasPrefix(row, " secret ")
			}) {
				t.Errorf("%s sets %s, which is no setting of %s", name, variable.Name, c.Args[0])
			}
		}
	}
}

// TestSelectors_findTheirPods: budgets, policies, services and scaling are about pods that exist.
func TestSelectors_findTheirPods(t *testing.T) {
	t.Parallel()
	all := pods(t)
	finds := func(name string, labels map[string]string) {
		t.Helper()
		for _, pod := range all {
			matches := len(labels) > 0
			for key, value := range labels {
				matches = matches && pod.Labels[key] == value
			}
			if matches {
				return
			}
		}
		t.Errorf("%s selects no pod: %v", name, labels)
	}
	for _, m := range build(t, manifests+"/base") {
		switch value := m.value.(type) {
		case *appsv1.Deployment:
			finds(m.name, value.Spec.Selector.MatchLabels)
			probes(t, value.Spec.Template.Spec.Containers[0])
		case *corev1.Service:
			finds(m.name, value.Spec.Selector)
		case *policyv1.PodDisruptionBudget:
			finds(m.name, value.Spec.Selector.MatchLabels)
		case *networkingv1.NetworkPolicy:
			finds(m.name, value.Spec.PodSelector.MatchLabels)
		case *autoscalingv2.HorizontalPodAutoscaler:
			if _, known := all[value.Spec.ScaleTargetRef.Name]; !known || *value.Spec.MinReplicas < 2 {
				t.Errorf("%s scales %s from %d", m.name, value.Spec.ScaleTargetRef.Name, *value.Spec.MinReplicas)
			}
		}
	}
}

// probes checks that the probes ask ports and paths that the program has.
func probes(t *testing.T, c corev1.Container) {
	t.Helper()
	for path, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if probe == nil || probe.HTTPGet.Path != path || !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
			return p.Name == probe.HTTPGet.Port.StrVal
		}) {
			t.Errorf("%s: its probe is %+v", c.Name, probe)
		}
	}
}
